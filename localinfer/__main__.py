"""`python -m localinfer` is the command `localinfer`."""

from localinfer.cli.main import main

if __name__ == "__main__":
    main()
