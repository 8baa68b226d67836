"""``python -m stateline.cli``: the command ``stateline`` where its script is not on the path."""

from stateline.cli.main import main

if __name__ == "__main__":
    main()
