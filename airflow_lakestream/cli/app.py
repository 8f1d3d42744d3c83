"""The program `lakestream`. Exit codes: 0 done or clean, 1 damage, 2 could not look or not done."""

from __future__ import annotations

import codecs
import io
import locale
import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from airflow_lakestream import __version__
from airflow_lakestream.cli import ledger, mirror, pipeline, rejects
from airflow_lakestream.cli.adopt import adopt, hand_over
from airflow_lakestream.cli.audit import audit
from airflow_lakestream.cli.doctor import doctor
from airflow_lakestream.cli.init import init
from airflow_lakestream.cli.plan import plan
from airflow_lakestream.cli.preview import preview
from airflow_lakestream.cli.status import status
from airflow_lakestream.config.literals import refuse_templates
from airflow_lakestream.core.printable import printable
from airflow_lakestream.exceptions import LakestreamError

FAILED = 2
# Typer's exit code for Ctrl-C, without a message.
_INTERRUPTED = 130
_UTF8 = "PYTHONUTF8"

app = typer.Typer(
    help="Query and change what tables know of the Kafka topics landed in them. Exit codes: 0 done or clean, 1 damage, "
    "or a stream that needs somebody, 2 could not look, or not done.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(init)
app.command()(preview)
app.command()(doctor)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"lakestream {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", help="show the version", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


app.command()(audit)
app.command()(plan)
app.command()(status)
app.command()(adopt)
app.command()(hand_over)
app.add_typer(ledger.app, name="ledger")
app.add_typer(mirror.app, name="mirror")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(rejects.app, name="rejects")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program and exit with the exit code; an error is a single line on stderr."""
    if arguments is None:
        _begin_in_utf8()
    # If the locale lacks letters, escape them: a letter must not fail the command.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    # The error line names the problem; PyIceberg's log would repeat it.
    logging.getLogger("pyiceberg").setLevel(logging.CRITICAL)
    sys.exit(run(arguments))


def _begin_in_utf8() -> None:
    """Start the program again in UTF-8 if the locale has ASCII alone: Airflow reads UTF-8 files by the locale."""
    if codecs.lookup(locale.getencoding()).name == "ascii" and os.environ.get(_UTF8) != "1":
        command = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, command, {**os.environ, _UTF8: "1"})  # noqa: S606  # this very program


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return the exit code."""
    try:
        _refuse_templates(sys.argv[1:] if arguments is None else arguments)
        code = app(args=None if arguments is None else list(arguments), prog_name="lakestream", standalone_mode=False)
    except SystemExit:
        # Click's end if nobody reads the output: its code, 1, would mean damage.
        return FAILED
    except (Exception, KeyboardInterrupt) as e:  # noqa: BLE001  # for any error the caller reads one line
        if type(e).__name__ == "NoArgsIsHelpError":
            # Its message is the help, which Typer has printed if it formats it by Rich.
            sys.stdout.write(getattr(e, "message", ""))
            return FAILED
        sys.stderr.write(f"lakestream: {_one_line(e)}\n")
        return FAILED
    if code == _INTERRUPTED:
        sys.stderr.write("lakestream: interrupted.\n")
        return FAILED
    return code if isinstance(code, int) else 0


def _refuse_templates(arguments: Sequence[str]) -> None:
    """Refuse templates in any option, since no template is rendered here. Raises InvalidArgument."""
    option = ""
    for text in arguments:
        is_option = text.startswith("--")
        name, _, value = text.partition("=") if is_option else (option, "", text)
        refuse_templates({"sql" if name == "--sql" else name or "arguments": value})
        option = name if is_option and not value else ""


def _one_line(error: BaseException) -> str:
    # Extensions wrap a KeyboardInterrupt that arrives while they work into a SystemError.
    if isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt):
        return "interrupted."
    # Wrong arguments, in the words of any version of Typer and Click.
    if format_message := getattr(error, "format_message", None):
        return f"{format_message()} See lakestream --help.".replace("\n", " ")
    text = printable(" ".join(str(error).split()))
    return text if isinstance(error, LakestreamError) else f"{type(error).__name__}: {text}"
