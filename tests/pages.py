"""Pages of the documentation whose blocks are a program."""


def code_of(text: str) -> str:
    """The Python of a page, each line where it stands in the page, so that a traceback names the right one."""
    lines, inside = [], False
    for line in text.splitlines():
        if line.startswith("```"):
            inside = line == "```python"
        lines.append(line if inside and not line.startswith("```") else "")
    return "\n".join(lines)
