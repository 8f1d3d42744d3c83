"""The parts of SparkStreamingSubmitOperator."""
