"""``format("stateline")``: state and its changes, read by Spark."""
