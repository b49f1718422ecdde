"""The command `localinfer`: finds the command that was asked for, runs it, and words what went wrong.

EXIT_CODES, which the help shows, says how it ends.
"""

import gc
import io
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from localinfer.cli.output import OutputError, ReaderLeft, StandardOutput, end_line, error

if TYPE_CHECKING:
    import typer

# name -> module with a function `command`. Only the module of the command that runs is imported.
COMMANDS = {
    "chat": "localinfer.cli.chat",
    "run": "localinfer.cli.run",
    "serve": "localinfer.cli.serve",
    "pull": "localinfer.cli.pull",
    "search": "localinfer.cli.search",
    "list": "localinfer.cli.installed",
    "show": "localinfer.cli.show",
    "rm": "localinfer.cli.remove",
    "gc": "localinfer.cli.gc",
    "quantize": "localinfer.cli.quantize",
    "verify": "localinfer.cli.verify",
    "eval": "localinfer.cli.evaluate",
    "bench": "localinfer.cli.bench",
    "doctor": "localinfer.cli.doctor",
}
USAGE_ERROR, INTERRUPTED, READER_LEFT = 2, 130, 141  # the last two as a shell names the ends by SIGINT and SIGPIPE
EXIT_CODES = (
    f"Exit codes: 0 done; 1 an error, which the message explains; {USAGE_ERROR} a command line that makes no sense; "
    f"{INTERRUPTED} Ctrl-C; {READER_LEFT} whoever read the output left (localinfer list | head -1); 3 and 4 "
    "as localinfer verify --help says."
)


def main() -> NoReturn:
    """The entry point."""
    # Imports make many objects and no garbage; whoever loads a model switches the collector on again.
    gc.disable()
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A pipe or a file gets UTF-8 whatever the locale; a terminal gets what it can show.
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")
    # A terminal does not fill up, and input() loses a Ctrl-C that comes while it flushes a stream written in Python.
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.isatty():
        sys.stdout = StandardOutput(sys.stdout)
    sys.exit(execute(sys.argv[1:]))


def execute(arguments: list[str]) -> int:
    """Runs one command line and returns its exit code. What is not foreseen keeps its traceback."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        # UTF-8 whatever the locale, set before anything is read; what is not comes through as lone surrogates, which
        # those who read a message refuse.
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    try:
        code = _execute(arguments)
        if code == INTERRUPTED:
            end_line()  # that Ctrl-C stands in
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        end_line()
        return INTERRUPTED
    except ReaderLeft:
        _discard_output()
        return READER_LEFT
    except OutputError as problem:
        _discard_output()
        error(problem.message)
        return problem.exit_code
    except Exception:
        _ask_for_report()
        raise


def _open_closed_streams() -> None:
    """Opens what the shell closed (`<&-`), else the next file that we open would take its place.

    Input is then empty, messages go nowhere, and writing to standard output fails.
    """
    for number, name, mode, flags in (
        (0, "stdin", "r", os.O_RDONLY),
        (1, "stdout", "w", os.O_RDONLY),
        (2, "stderr", "w", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flags)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", errors="replace", closefd=False))


def _discard_output() -> None:
    """Else Python would complain about the rest once more while it exits."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _ask_for_report() -> None:
    print("localinfer met something it did not foresee. Please report it, with what follows:", file=sys.stderr)


def _execute(arguments: list[str]) -> int:
    import typer

    from localinfer.cli.quick import skip_needless_checks
    from localinfer.errors import LocalInferError

    # The base of all complaints about a command line; newer versions of Typer have it under no public name.
    usage_error: type[Any] = typer.BadParameter.__bases__[0]
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    wanted = arguments[0] if arguments else ""
    command: Any = typer.main.get_command(build_app(wanted))
    skip_needless_checks(command)
    if wanted in COMMANDS:
        skip_needless_checks(command.commands[wanted], import_module(COMMANDS[wanted]).command)
    try:
        return command.main(arguments, prog_name="localinfer", standalone_mode=False) or 0
    except OutputError:
        raise
    except LocalInferError as problem:
        error(problem.message, problem.hint)
        return problem.exit_code
    except usage_error as problem:
        context = getattr(problem, "ctx", None)
        path = context.command_path if context else "localinfer"
        # One of ours, which names what it is about; Typer would begin it with "Invalid value".
        own = type(problem) is typer.BadParameter and problem.param is None and not problem.param_hint
        error(problem.message if own else problem.format_message(), f"{path} --help")
        return USAGE_ERROR
    except typer.Abort:
        return INTERRUPTED


def build_app(wanted: str = "") -> "typer.Typer":
    """The Typer application: with the one command `wanted`, if there is such a command, else with all of them."""
    import typer

    # Help drawn by Rich takes 0.15 s longer.
    app = typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        epilog=EXIT_CODES,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback(invoke_without_command=True)
    def localinfer(
        context: typer.Context,
        version: bool = typer.Option(False, "--version", help="Show the version and exit."),
    ) -> None:
        """Talk to language models on this machine."""
        if version:
            from localinfer import __version__

            print(f"localinfer {__version__}")
        elif context.invoked_subcommand is None:
            print(context.get_help())

    for name in [wanted] if wanted in COMMANDS else COMMANDS:
        app.command(name)(import_module(COMMANDS[name]).command)
    return app
