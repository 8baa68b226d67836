"""One micro-batch without Spark: what a driver decides, what a subtask computes, what their record may follow."""
