"""The command line: ``kernelinf demo``, also ``python -m kernelinf demo``."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from . import _demo
from ._arguments import prepare
from ._version import __version__

DESCRIPTION = """\
Train an infinitely wide network, predict what forgetting some of its training points changes, and
compare with retraining without them. Prints tables and writes one figure. Changes are after the
removal minus before: a positive change of a test loss means that the forgotten points were helpful.
"""
FORGET = """\
what to forget; repeat the option for several forget sets, each removed from the full model. One of:
half (random); a fraction such as 0.1 (random); class:LABEL, every training point of one class;
training indices such as 3,17,42; file:PATH, a text file of indices. Default: half, and class:3 of
the digits or the first class of other data
"""
NETWORK = """\
fcnn or cnn, with a number of hidden layers if not 3: fcnn:5. fcnn flattens the points; cnn takes
images (height, width) or (height, width, channels) and has no pooling. Default: fcnn:3
"""


class _UsageError(Exception):
    """A wrong command line."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _UsageError(f"{self.prog}: error: {message}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv
        Arguments; those of the process by default.

    Returns
    -------
    int
        Exit status: 0; 1 when memory ran out, numbers overflowed or nobody reads the output; 2 for
        a wrong argument; 130 after Ctrl-C.
    """
    try:
        return _run(_parser().parse_args(argv))
    except _UsageError as error:
        print(error, file=sys.stderr)
        return 2
    except (MemoryError, FloatingPointError) as error:
        print(f"kernelinf: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # what reads the output, such as head, has stopped
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("kernelinf: interrupted", file=sys.stderr)
        return 130


def _run(arguments: argparse.Namespace) -> int:
    clock = _demo.Clock()
    try:
        with clock.stage("data"):
            setup = prepare(**vars(arguments))
        _demo.announce(setup, clock)
    except BrokenPipeError:
        raise
    except (ValueError, TypeError, OSError, ImportError) as error:
        raise _UsageError(f"kernelinf demo: error: {error}") from error
    _demo.run(setup, clock)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="kernelinf", description="Influence functions at infinite width.")
    parser.add_argument("--version", action="version", version=f"kernelinf {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo", help="forget some training points: predicted and retrained", description=DESCRIPTION
    )
    demo.add_argument(
        "--data",
        type=Path,
        metavar="FILE.npz",
        help="data with the arrays x_train, y_train, x_test, y_test; uint8 points are pixels and "
        "are divided by 255. Default: scikit-learn's digits",
    )
    demo.add_argument(
        "--out",
        type=Path,
        metavar="FILE.png",
        default=Path("kernelinf-demo.png"),
        help="where the figure goes. Default: %(default)s",
    )
    demo.add_argument("--network", default="fcnn:3", metavar="NAME[:DEPTH]", help=NETWORK)
    demo.add_argument(
        "--loss",
        choices=("cross_entropy", "squared", "logistic"),
        default="cross_entropy",
        help="logistic takes two classes: of the default data, digits 3 and 8. squared also takes "
        "real targets. Default: %(default)s",
    )
    demo.add_argument(
        "--reg",
        type=float,
        default=1e-2,
        help="coefficient of reg/2 ||theta - theta'||^2 beside the mean loss. Default: %(default)s",
    )
    demo.add_argument("--forget", action="append", metavar="SET", help=FORGET)
    return parser


if __name__ == "__main__":
    sys.exit(main())
