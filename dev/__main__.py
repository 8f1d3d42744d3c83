"""The stack on this machine, without Docker: `python -m dev up`, and the rest."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from dev.browser import have_chromium
from dev.class_archive import make_archive
from dev.durations import Durations, report_durations
from dev.errors import DevError, UnknownService
from dev.progress import Clock
from dev.service import CHECKOUT
from dev.services import azure, gcs, kubernetes, s3
from dev.services.flink import OLD as OLD_FLINK
from dev.services.metastore import OLD
from dev.sources.clickstream import produce_clickstream
from dev.sources.flights import produce_flights
from dev.stack import DEFAULT, HOME, SERVICES, Stack, all_stacks
from dev.suites.choice import BASE, report
from dev.suites.running import run_suites
from dev.suites.table import SUITES
from dev.suites.tools import REACHED


def up(args: argparse.Namespace) -> None:
    """Start services and wait until they are healthy; they run until `down`."""
    stack = Stack(args.stack, say=Clock().say)
    overrides = dict(setting.split("=", 1) for setting in args.set) if args.set else None
    if unknown := set(args.services) - set(SERVICES):
        raise UnknownService(f"No service {', '.join(sorted(unknown))}: there are {', '.join(SERVICES)}.")
    # The others are for those who ask for them.
    wanted = args.services or ["kafka", "airflow"]
    # Airflow brings Kafka up by itself, at the same time; settings for Kafka have to come first.
    if overrides or ("kafka" in wanted and "airflow" not in wanted):
        stack.up_kafka(overrides)
    others: dict[str, Callable[[], object]] = {
        **dict.fromkeys(("broker-1", "broker-2", "broker-3"), stack.up_brokers),
        "registry": stack.up_registry,
        "s3": stack.up_s3,
        "gcs": stack.up_gcs,
        "careless-gcs": partial(stack.up_gcs, careless=True),
        "azure": stack.up_azure,
        "hdfs-name-node": stack.up_hdfs,
        "hdfs-data-node": stack.up_hdfs,
        "postgres": stack.up_postgres,
        "metastore": stack.up_metastore,
        "old-metastore": partial(stack.up_metastore, OLD),
        "mariadb": stack.up_mariadb,
        "mariadb-2": partial(stack.up_mariadb, 2),
        "rest-catalog": stack.up_rest_catalog,
        "glue": stack.up_glue,
        "careless-glue": partial(stack.up_glue, careless=True),
        "connect": stack.up_connect,
        "spark-master": stack.up_spark,
        "spark-worker": stack.up_spark,
        "spark-worker-2": partial(stack.up_spark_workers, 2, cores=1),
        "yarn-manager": stack.up_yarn,
        "yarn-node": stack.up_yarn,
        "flink-manager": stack.up_flink,
        "flink-worker": stack.up_flink,
        "flink-gateway": stack.up_flink,
        **{f"old-flink-{name}": partial(stack.up_flink, OLD_FLINK) for name in ("manager", "worker", "gateway")},
    }
    for start in dict.fromkeys(start for name, start in others.items() if name in wanted):
        start()
    if "airflow" in wanted:
        stack.up_airflow()


def down(args: argparse.Namespace) -> None:
    """Stop the services of a stack and remove their data (the jars stay)."""
    stacks = [found.name for found in all_stacks()] if args.all else [args.stack]
    for name in stacks:
        stopped = Stack(name, say=Clock().say).down()
        print(f"{name} is down: {', '.join(stopped)}" if stopped else f"nothing was up in stack {name}")


def status(args: argparse.Namespace) -> None:
    """Show each service of each stack: process, ports, health, folder."""
    rows = [(stack.name, found) for stack in all_stacks() for found in stack.status()]
    for name, found in rows:
        ports = " ".join(f"{which}={port}" for which, port in found.ports.items())
        print(f"{name:<24} {found.service:<12} pid {found.pid or '-':<8} {found.health:<13} {ports:<28} {found.folder}")
    if not rows:
        print("nothing is up")


def logs(args: argparse.Namespace) -> None:
    """Print the end of a service's log."""
    log = Stack(args.stack).log_of(args.service)
    with log.open(errors="replace") as lines:
        sys.stdout.writelines(deque(lines, maxlen=args.lines))
        while args.follow and log.exists():
            if line := lines.readline():
                print(line, end="", flush=True)
            else:
                # Following a file: nothing tells that it grew.
                time.sleep(0.2)


def produce(args: argparse.Namespace) -> None:
    """Send records into a topic of the stack: clickstream events until stopped, or the real flights."""
    kafka = Stack(args.stack).kafka()
    clock = Clock()
    common = {"partitions": args.partitions, "count": args.count, "say": clock.say}
    if args.source == "flights":
        sent = produce_flights(kafka.client_config(), args.topic or "flights", **common)
    else:
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        settings = {"rate": args.rate, "seed": args.seed, "stop": stop, **common}
        sent = produce_clickstream(kafka.client_config(), args.topic or "clickstream", **settings)
    clock.say(f"{sent:,} records sent, {sent / clock.elapsed:,.0f}/s")


def demo(args: argparse.Namespace) -> None:
    """Watch real Airflow land a clickstream from Kafka in an Iceberg table, in a stack of its own."""
    # Only the demo needs the package, PyIceberg and rich: the other commands stay quick.
    from dev.demo import run_demo

    run_demo(args.rate, args.once, args.cdc)


def browser(args: argparse.Namespace) -> None:
    """Say where this machine's Chromium is; install Debian's where there is none and this is root."""
    print(have_chromium())


def durations(args: argparse.Namespace) -> None:
    """Show how long the tests of the last runs took, and what starting services cost."""
    for line in report_durations(Durations.read(), args.lines):
        print(line)


def suites(args: argparse.Namespace) -> None:
    """Say which suites of tests a change can reach, and why; a change is what differs from a base."""
    for line in report(CHECKOUT, args.base, every=args.all, why=args.why, names=args.names, files=args.files):
        print(line)


def classes(args: argparse.Namespace) -> None:
    """Make the archive of classes that Spark's drivers of the tests start from."""
    make_archive(HOME, Clock().say)


def stores(args: argparse.Namespace) -> None:
    """Build the object stores of the tests, minutes long the first time, which are no test's own."""
    for name, build in {"s3": s3.build, "gcs": gcs.build, "azure": azure.install}.items():
        if args.only in {None, name}:
            build(HOME / "bin", Clock().say)


def node(args: argparse.Namespace) -> None:
    """Make all that a Kubernetes of one node needs, in the user's cache: some 15 minutes of a processor, once."""
    kubernetes.make(Clock().say)


def test(args: argparse.Namespace) -> None:
    """Run suites of tests, those that share services in one run of pytest, and report each suite."""
    if not run_suites(args.suites, jobs=args.jobs, order=args.order, again=args.again):
        sys.exit(1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dev", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(run: Callable[..., object], name: str | None = None) -> argparse.ArgumentParser:
        text = run.__doc__ or ""
        sub = commands.add_parser(name or run.__name__, help=text.partition("\n")[0], description=text)
        sub.set_defaults(run=run)
        sub.add_argument("--stack", default=DEFAULT, help=f"name of the stack (default: {DEFAULT})")
        return sub

    starting = command(up)
    known = ", ".join(SERVICES)
    starting.add_argument("services", nargs="*", metavar="SERVICE", help=f"{known} (default: kafka and airflow)")
    starting.add_argument("--set", action="append", metavar="KEY=VALUE", help="a line for Kafka's server.properties")
    ending = command(down)
    ending.add_argument("--all", action="store_true", help="every stack of this checkout")
    command(status)
    reading = command(logs)
    reading.add_argument("service", nargs="?", default="kafka", choices=SERVICES)
    reading.add_argument("-n", "--lines", type=int, default=50, help="how many lines (default: 50)")
    reading.add_argument("-f", "--follow", action="store_true", help="go on as the log grows")
    sending = command(produce)
    sending.add_argument("source", choices=["clickstream", "flights"])
    sending.add_argument("--topic", help="default: the source's name")
    sending.add_argument("--partitions", type=int, default=4, help="of the topic, when it is made here (default: 4)")
    sending.add_argument("--count", type=int, help="stop after so many (default: clickstream never, flights all)")
    sending.add_argument("--rate", type=float, default=500, help="clickstream: events a second; 0: as fast as possible")
    sending.add_argument("--seed", type=int, default=7, help="clickstream: the same events for the same seed")
    showing = command(demo)
    showing.add_argument("--once", action="store_true", help="stop when three runs have landed")
    showing.add_argument("--rate", type=float, default=500, help="events a second (default: 500)")
    showing.add_argument("--cdc", action="store_true", help="with a PostgreSQL and Debezium, for the DAGs of mirrors")
    command(browser)
    longest = command(durations)
    longest.add_argument("-n", "--lines", type=int, default=50, help="lines of each list (default: 50)")
    command(classes)
    command(stores).add_argument("--only", choices=["s3", "gcs", "azure"], help="one of them (default: all)")
    command(node)
    running = command(test)
    names = ", ".join(suite.name for suite in SUITES)
    running.add_argument("suites", nargs="+", metavar="SUITE", help=f"{names}; all, or {REACHED} by the change")
    running.add_argument("--jobs", type=int, default=4, help="workers that share the files of a run (default: 4)")
    running.add_argument("--order", metavar="SEED", help="run the files in a random order, the same for the same seed")
    running.add_argument("--again", action="store_true", help="try the few that failed once more, when all is over")
    choosing = command(suites)
    choosing.add_argument("--base", metavar="REV", help=f"default: {BASE}, then origin/main; without one: every suite")
    choosing.add_argument("--all", action="store_true", help="every suite")
    choosing.add_argument("--why", action="store_true", help="a line for each changed file")
    choosing.add_argument("--names", action="store_true", help="only the names of those that are reached")
    known = [suite.name for suite in SUITES]
    choosing.add_argument("--files", metavar="SUITE", choices=known, help="only the suite's files that are reached")
    return parser


def main() -> int:
    """Run one command."""
    args = _parser().parse_args()
    try:
        args.run(args)
    except DevError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
