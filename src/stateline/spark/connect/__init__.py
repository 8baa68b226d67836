"""Pipelines over Spark Connect: what a program describes runs in a Python worker of the server.

The classic way is :mod:`stateline.spark.query`; both run the same :class:`~stateline.spark.query.run.PipelineRun`.
"""
