"""Where rows leave Spark: ``format("stateline_files")``, and functions of the user's."""
