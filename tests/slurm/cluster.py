"""A SLURM cluster of one node on this machine, from Debian's packages: munge, slurmctld, slurmd; slurmdbd and MariaDB.

Needs root, and writes /etc/slurm/slurm.conf: the job step of the executor plugin removes SLURM_CONF from the
environment, so that a cluster configured elsewhere is not found. What was there is put back at the end.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

CONFIG = Path("/etc/slurm")
FILES = ("slurm.conf", "slurmdbd.conf")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo", "scontrol")
ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "mariadb", "sacctmgr")
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin", "/usr/local/sbin"])
CPUS = 2
MEMORY = 4000
"""MB of the node, as SLURM counts it."""
ACCOUNT = "laboratory"


def missing(accounting: bool = True) -> str:
    """Why no cluster can be started here, or nothing."""
    programs = PROGRAMS + (ACCOUNTING_PROGRAMS if accounting else ())
    lacking = [program for program in programs if not shutil.which(program, path=PATH)]
    if lacking:
        return f"not installed: {', '.join(lacking)} (Debian: munge slurm-wlm slurmdbd mariadb-server)"
    if os.geteuid() != 0:
        return "a SLURM cluster can only be started by root"
    if _alive("slurmctld") or _alive("slurmd"):
        return "a SLURM daemon is running here already; it is left alone"
    return ""


def _alive(program: str) -> bool:
    return subprocess.run(["pgrep", "-x", program], capture_output=True, check=False).returncode == 0


@dataclass
class Cluster:
    """The running cluster.

    Attributes:
        accounting: whether jobs are recorded in a database, so that `sacct` answers.
        folder: logs, spool and database.
    """

    accounting: bool
    folder: Path
    daemons: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    past: int = 0
    """The last job of earlier tests."""
    ports: dict[str, int] = field(default_factory=dict)

    @property
    def node(self) -> str:
        """The node's name: the daemons insist on the machine's own."""
        return socket.gethostname().partition(".")[0]

    def call(self, *command: str, check: bool = True) -> str:
        """Run a client command; returns what it printed."""
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env=os.environ | {"PATH": PATH}
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)} exited {done.returncode}: {done.stderr.strip()}\n{self.logs()}")
        return done.stdout

    def start(self) -> None:
        """Start everything; returns when the node is idle."""
        self.ports = dict(zip(("ctld", "d", "dbd", "mariadb"), free_ports(4), strict=True))
        self._start_munge()
        if self.accounting:
            self._start_database()
        _write(CONFIG / "slurm.conf", self._slurm_conf())
        if self.accounting:
            _write(CONFIG / "slurmdbd.conf", self._slurmdbd_conf(), mode=0o600)
            self._spawn("slurmdbd", "-D")
            self._until("slurmdbd", lambda: self._answers("sacctmgr", "-n", "show", "cluster"))
            self.call("sacctmgr", "-i", "add", "cluster", "headmaps")
            self.call("sacctmgr", "-i", "add", "account", ACCOUNT, "Description=tests", "Organization=tests")
            self.call("sacctmgr", "-i", "add", "user", "root", f"Account={ACCOUNT}")
        self._spawn("slurmctld", "-D", "-c")
        self._spawn("slurmd", "-D", "-c")
        self._until("node", lambda: "idle" in self.call("sinfo", "-h", "-o", "%T", check=False))

    def stop(self) -> None:
        """Stop every daemon that `start` started, in reverse order."""
        self.call("scancel", "--user=root", check=False)
        for daemon in reversed(self.daemons):
            if daemon.poll() is None:
                daemon.send_signal(signal.SIGTERM)
                try:
                    daemon.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait()
        self.daemons.clear()

    def logs(self) -> str:
        """The last lines of every daemon's log."""
        texts = []
        for log in sorted(self.folder.glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()[-12:]
            texts.append(f"--- {log.name}\n" + "\n".join(lines))
        return "\n".join(texts)

    def clear(self) -> None:
        """End what earlier tests left over, and forget it."""
        self.resume()
        self.call("scancel", "--user=root", check=False)
        self.until_idle()
        self.past = max((number for number, _ in self.jobs()), default=self.past)

    def jobs(self) -> list[tuple[int, str]]:
        """(job id, state) of every job since `clear` that the controller remembers."""
        rows = [line.split("|") for line in self.call("squeue", "-h", "-t", "all", "-o", "%i|%T").split()]
        return sorted((int(number), state) for number, state in rows if int(number) > self.past)

    def running(self) -> list[int]:
        """The ids of the jobs that run now."""
        return [number for number, state in self.jobs() if state == "RUNNING"]

    def until_idle(self) -> None:
        """Wait until no job waits, runs or ends."""
        self._until("the end of all jobs", lambda: self.call("squeue", "-h") == "")

    def memory(self, job: int) -> tuple[float, float, int]:
        """(peak in MB, MB asked for, CPUs asked for) of a finished job.

        Snakemake's own process is SLURM's step `batch`; each step of the workflow runs beside it, one after another.
        """
        rows = self.call("sacct", "-j", str(job), "-n", "-P", "--units=M", "-o", "JobID,MaxRSS,ReqMem,ReqCPUS")
        peaks: dict[str, float] = {}
        for row in rows.split():
            name, peak, asked, cpus = row.split("|")
            if "." in name:
                peaks[name.partition(".")[2]] = float(peak.rstrip("M") or 0)
            else:
                request, number = float(asked.rstrip("M")), int(cpus)
        batch = peaks.pop("batch")
        return batch + max(peaks.values(), default=0.0), request, number

    def log_of(self, daemon: str) -> str:
        """What a daemon has logged."""
        return (self.folder / f"{daemon}.log").read_text(errors="replace")

    def resume(self) -> None:
        """Make the node take jobs again."""
        self.call("scontrol", "update", f"nodename={self.node}", "state=resume", check=False)
        self._until("node", lambda: self.call("sinfo", "-h", "-o", "%T").strip() in {"idle", "mixed", "allocated"})

    def drain(self) -> None:
        """Let the node take no further jobs."""
        self.call("scontrol", "update", f"nodename={self.node}", "state=drain", "reason=test")

    # --- parts --------------------------------------------------------------------------------------------------------

    def _start_munge(self) -> None:
        if self._answers("munge", "-n"):
            return
        for place, mode in (("/run/munge", 0o755), ("/var/log/munge", 0o700), ("/var/lib/munge", 0o700)):
            Path(place).mkdir(parents=True, exist_ok=True)
            shutil.chown(place, "munge", "munge")
            Path(place).chmod(mode)
        self._spawn("munged", "--foreground", "--force", user="munge")
        self._until("munged", lambda: self._answers("munge", "-n"))

    def _start_database(self) -> None:
        data, at = self.folder / "database", self.folder / "sql"
        install = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root", "--skip-test-db"]
        self.call(*install, "--auth-root-authentication-method=normal")
        self._spawn(
            "mariadbd", "--no-defaults", f"--datadir={data}", "--user=root", f"--socket={at}",
            "--bind-address=127.0.0.1", f"--port={self.ports['mariadb']}", f"--pid-file={self.folder / 'sql.pid'}",
        )  # fmt: skip
        client = ("mariadb", "--no-defaults", f"--socket={at}", "--user=root")
        self._until("mariadbd", lambda: self._answers(*client, "-e", "select 1"))
        grant = "create user slurm@'127.0.0.1' identified by 'slurm'; grant all on slurm_acct_db.* to slurm@'127.0.0.1'"
        self.call(*client, "-e", grant)

    def _spawn(self, program: str, *arguments: str, user: str | None = None) -> None:
        path = shutil.which(program, path=PATH)
        assert path
        with open(self.folder / f"{program}.log", "ab") as log:
            self.daemons.append(
                subprocess.Popen(
                    [path, *arguments],
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    user=user,
                    group=user,
                    extra_groups=[] if user else None,
                    cwd="/",
                )
            )

    def _answers(self, *command: str) -> bool:
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=30, check=False, env=os.environ | {"PATH": PATH}
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0

    def _until(self, what: str, ready: Callable[[], bool], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not ready():
            for daemon in self.daemons:
                if daemon.poll() is not None:
                    raise RuntimeError(f"{daemon.args} ended with {daemon.returncode}\n{self.logs()}")
            if time.monotonic() > end:
                raise RuntimeError(f"{what} was not ready after {seconds:.0f} s\n{self.logs()}")
            time.sleep(0.2)

    def _slurm_conf(self) -> str:
        storage = (
            f"AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n"
            f"AccountingStoragePort={self.ports['dbd']}\n"
            if self.accounting
            else "AccountingStorageType=accounting_storage/none\n"
        )
        return f"""\
ClusterName=headmaps
SlurmctldHost={self.node}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={self.ports["ctld"]}
SlurmdPort={self.ports["d"]}
StateSaveLocation={_made(self.folder / "state")}
SlurmdSpoolDir={_made(self.folder / "spool")}
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd.pid
AuthType=auth/munge
MpiDefault=none
ReturnToService=2
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
KillWait=2
MinJobAge=300
{storage}SlurmdParameters=config_overrides
NodeName={self.node} NodeAddr=127.0.0.1 CPUs={CPUS} RealMemory={MEMORY} State=UNKNOWN
PartitionName=main Nodes={self.node} Default=YES MaxTime=INFINITE State=UP
"""

    def _slurmdbd_conf(self) -> str:
        return f"""\
AuthType=auth/munge
DbdHost={self.node}
DbdAddr=127.0.0.1
DbdPort={self.ports["dbd"]}
SlurmUser=root
PidFile={self.folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={self.ports["mariadb"]}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
"""


def free_ports(number: int) -> list[int]:
    """Ports of this machine that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=mode)
    path.chmod(mode)
    path.write_text(text)


@contextlib.contextmanager
def cluster(accounting: bool) -> Iterator[Cluster]:
    """A running cluster; at the end its daemons are stopped and /etc/slurm is as it was."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short: sockets lie in it
    saved = {name: (CONFIG / name).read_bytes() for name in FILES if (CONFIG / name).is_file()}
    one = Cluster(accounting, folder)
    try:
        one.start()
        yield one
    finally:
        one.stop()
        for name in FILES:
            if name in saved:
                (CONFIG / name).write_bytes(saved[name])
            else:
                (CONFIG / name).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
