"""Parts of FlinkSqlOperator and FlinkScriptOperator."""
