"""What KafkaConnectOperator is made of."""
