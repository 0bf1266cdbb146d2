"""The command line: ``tinygpu COMMAND``.

Every command is a few lines over the Python API; what takes long to load (the solver, the plots,
CuPy) is loaded by the command that needs it.  A mistake of the user's is one line on standard
error, ``error: subject, law, got, allowed, way out``, and a status:

    0    done
    1    ``check``: the schedule is illegal; ``verify``: the certificate is refused; ``run`` and
         ``ptx``: the kernel is wrong; ``ask``: no schedule is left; ``prove``: there is a
         counterexample
    2    an error that the user can mend
    3    ``ask`` and ``prove``: unknown; ``ptx``: warnings alone; ``check --certificate`` and
         ``verify``: not certified
    130  interrupted; what was found is kept
"""

from __future__ import annotations

import errno
import sys
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from tinygpu.cli import ask, code, demo, dispatch, look, plot, ptx, reporting, search, stored, which
from tinygpu.cli.console import complain, say
from tinygpu.cli.sizes import SizedCommand
from tinygpu.errors import TinyGpuError
from tinygpu.machines.file import fault_in_machine

__all__ = ["app"]

_WAYS = {
    errno.ENOSPC: "free some space, or choose a folder on another disk",
    errno.EDQUOT: "your quota is used up: free some space, or choose another folder",
    errno.EROFS: "the file system is read-only: choose another folder",
    errno.EACCES: "choose a file or folder that you may use, or change its permissions",
    errno.EPERM: "choose a file or folder that you may use, or change its permissions",
    errno.ENOENT: "check the path",
    errno.EISDIR: "it is a folder: give a file",
    errno.ENOTDIR: "part of the path is a file: choose another folder",
    errno.EEXIST: "a file of that name is in the way: choose another folder",
    errno.EMFILE: "too many files are open: raise ulimit -n",
}
_UsageError = cast("type[Exception]", typer.BadParameter.__base__)  # a wrong option or argument


class _Group(TyperGroup):
    """The commands; their errors become one line and a status."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run a command line and exit with its status."""
        standalone = options.pop("standalone_mode", True)
        options |= {"standalone_mode": False, "prog_name": "tinygpu"}
        given = args[0] if args else options.pop("args", None)
        words = sys.argv[1:] if given is None else list(given)
        try:
            for word in words:  # an empty path would be the current folder
                if not word or (word.startswith("--") and word.find("=") == len(word) - 1):
                    raise _UsageError(f"argument {word or repr(word)} is empty; give a value")
            status = super().main(words, **options)
        except typer.Abort:
            status = 130
        except _UsageError as error:
            usage = cast("Any", error)
            path = usage.ctx.command_path if usage.ctx else "tinygpu"
            told = usage.format_message().rstrip(".")  # none where a group has shown its help
            status = complain(f"{told}; see {path} --help") if told else 2
        except TinyGpuError as error:
            complain(str(error))
            status = error.status
        except MemoryError:
            status = complain(
                "memory: not enough; fix some decisions by --fix, or lower --top or a size"
            )
        except OSError as error:
            what = f"{error.filename}: " if error.filename else ""
            way = _WAYS.get(error.errno or 0, "try again, or choose another path")
            status = complain(f"{what}{error.strerror or error}; {way}")
        except Exception as error:
            told = fault_in_machine(error)
            if not told:
                raise
            status = complain(told)  # the user's own machine, not tinygpu
        if status == 130:
            complain("interrupted; files written before are whole")
        if standalone:
            sys.exit(status if isinstance(status, int) else 0)
        return status


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(*, asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        say(f"tinygpu {version('tinygpu')}")
        raise typer.Exit


@app.callback()
def _main(
    _: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            is_eager=True,
            callback=lambda asked: _print_version(asked=asked),
        ),
    ] = False,
) -> None:
    """Search schedules under a formal model of a GPU, and write the PTX that it predicts."""


_SIZED = (search.search, ask.ask, ask.prove, code.run, dispatch.dispatch, which.which)
"""Commands that take sizes by the names of axes."""
for command in (
    *(look.machines, look.devices, look.laws, look.explain, look.check, look.verify),
    *(search.search, ask.ask, ask.prove, code.emit, code.calibrate, code.doctor, code.run),
    *(ptx.ptx, dispatch.dispatch, which.which, demo.demo, reporting.report),
):
    app.command(cls=SizedCommand if command in _SIZED else None)(command)
app.add_typer(plot.app, name="plot")
app.add_typer(stored.app, name="store")
