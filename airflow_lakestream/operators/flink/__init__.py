"""The parts of FlinkSqlOperator."""
