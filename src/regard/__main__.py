"""`python -m regard`: the same as the command `regard`."""

from regard.cli.main import run

if __name__ == "__main__":
    run()
