"""What Flink leaves in checkpoints, read without a JVM."""
