"""The Spark job of each micro-batch, and what happens around it while a query runs."""
