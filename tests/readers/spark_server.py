"""A program for ``.venv-readers``: one Spark session that reads and changes tables, told by lines of JSON.

It imports nothing of this repository, whose packages the other environment does not have. Each line of its standard
input is a request; each line of its standard output that begins with ``{`` is the answer to one:

- ``{"do": "sql", "statements": [..]}`` runs statements.
- ``{"do": "view", "name": .., "format": .., "path": ..}`` gives files, or a Delta table, the name of a view.
- ``{"do": "find", "table": .., "filters": [..]}`` answers, for each filter, the sorted ``rid`` of its rows.
- ``{"do": "rows", "table": ..}`` answers all rows, each a list of texts that no two different values share.
- ``{"do": "session", "settings": {..}}`` begins another session of the same process.

An answer is ``{"found": ..}`` or ``{"error": "<class>: <message>"}``.
"""

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import types as t

FILTERS_AT_ONCE = 60


def main(settings):
    """Answer requests until the input ends."""
    builder = SparkSession.builder.master("local[1]").appName("readers")
    for name, value in settings.items():
        builder = builder.config(name, value)
    first = builder.getOrCreate()
    first.sparkContext.setLogLevel("OFF")
    session = first
    answer({"found": first.version})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "session":
                session = first.newSession()
                for name, value in {**settings, **request["settings"]}.items():
                    if name.startswith("spark.sql.") and name not in STATIC:
                        session.conf.set(name, value)
                found = None
            else:
                found = ANSWERS[request["do"]](session, request)
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"[:4000]})
        else:
            answer({"found": found})
    first.stop()


STATIC = ("spark.sql.extensions", "spark.sql.warehouse.dir", "spark.sql.catalogImplementation")


def answer(value):
    sys.stdout.write(f"{json.dumps(value)}\n")
    sys.stdout.flush()


def run(session, request):
    """Run statements; the rows of the last one."""
    rows = []
    for statement in request["statements"]:
        rows = [[str(value) for value in row] for row in session.sql(statement).collect()]
    return rows


def view(session, request):
    """Name the rows of files."""
    session.read.format(request["format"]).load(request["path"]).createOrReplaceTempView(request["name"])


def find(session, request):
    """The rows that each filter finds. Several scans share a job: a job costs more than a scan of some rows."""
    filters = request["filters"]
    found = [[] for _ in filters]
    for first in range(0, len(filters), FILTERS_AT_ONCE):
        parts = [
            f"SELECT {number} AS f, rid FROM {request['table']} WHERE {condition}"
            for number, condition in enumerate(filters[first : first + FILTERS_AT_ONCE], first)
        ]
        for row in session.sql(" UNION ALL ".join(parts)).collect():
            found[row[0]].append(row[1])
    return [sorted(rows) for rows in found]


def rows(session, request):
    """All rows, as texts."""
    table = session.sql(f"SELECT * FROM {request['table']}")
    shown = [text_of(quoted(field.name), field.dataType) for field in table.schema.fields]
    found = session.sql(f"SELECT {', '.join(shown)} FROM {request['table']}").collect()
    return {"columns": table.schema.names, "rows": sorted([list(row) for row in found], key=repr)}


def text_of(value, kind):
    """SQL of a text for each value of a type. Different values have different texts; null has none."""
    if isinstance(kind, (t.StringType, t.BinaryType)):
        return f"hex({value})"
    if isinstance(kind, t.DateType):
        return f"CAST(unix_date({value}) AS STRING)"
    if isinstance(kind, t.TimestampType):
        return f"CAST(unix_micros({value}) AS STRING)"
    if isinstance(kind, t.TimestampNTZType):
        return f"CAST(unix_micros(CAST({value} AS TIMESTAMP)) AS STRING)"
    if isinstance(kind, t.ArrayType):
        inside = text_of("x", kind.elementType)
        return f"concat('[', array_join(transform({value}, x -> coalesce({inside}, 'null')), ','), ']')"
    if isinstance(kind, t.StructType):
        inside = [f"coalesce({text_of(f'{value}.{quoted(each.name)}', each.dataType)}, 'null')" for each in kind.fields]
        return f"CASE WHEN {value} IS NULL THEN NULL ELSE concat('{{', concat_ws(',', {', '.join(inside)}), '}}') END"
    return f"CAST({value} AS STRING)"


def quoted(name):
    return "`" + name.replace("`", "``") + "`"


ANSWERS = {"sql": run, "view": view, "find": find, "rows": rows}

if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
