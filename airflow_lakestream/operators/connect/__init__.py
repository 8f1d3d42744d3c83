"""Parts of KafkaConnectOperator."""
