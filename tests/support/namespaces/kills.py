"""Programs for `world.run`: netdoctor run and killed, and what differs afterwards."""

from __future__ import annotations

from typing import Final

# `whole_and_killed`: a command run to its end, then killed at moments drawn by seed (odd ones: SIGTERM, even ones: SIGKILL),
# and what differs after each.  The lock file of root stays: removing it would let two hold it.
_KILLING: Final = r"""
ALLOWED = "/run/netdoctor/netdoctor"
def after(before, own=()):
    left = settle()
    now = state()
    now["files"] = sorted(one for one in set(now["files"]) - set(own) if not one.startswith(ALLOWED))
    return {"changed": changed(before, now), "left": left}
def start(command):
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
def whole_and_killed(command, first, seeds, beside=None, own=()):
    "`beside`, if given, begins what goes with one run and returns what ends it; `own` are files that the command is to write."
    before = state()
    end = beside() if beside else None
    began = time.monotonic()
    whole = start(command)
    out, _ = whole.communicate()
    took = time.monotonic() - began
    if end: end()
    written = [path for path in own if os.path.exists(path)]
    result = {"exit": whole.returncode, "seconds": took, "report": out.decode(), "own": written, "killed": []}
    result |= after(before, own)
    for seed in range(first, first + seeds):
        draw = random.Random(seed)
        sign, delay = (signal.SIGKILL, signal.SIGTERM)[seed % 2], draw.uniform(0, took)
        for path in own:
            if os.path.exists(path): os.unlink(path)
        end = beside() if beside else None
        process = start(command)
        out = b""
        try:
            out, _ = process.communicate(timeout=delay)
        except subprocess.TimeoutExpired:
            process.send_signal(sign)
            out, _ = process.communicate()
        if end: end()
        result["killed"].append({"seed": seed, "signal": sign.name, "delay": delay, "exit": process.returncode,
            "report": bool(out.strip()), **after(before, own)})
    return result
"""

# argv: the Python with torch, the first seed, how many seeds.
KILLED: Final = (
    _KILLING
    + r"""
PYTHON, FIRST_SEED, SEEDS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
say(whole_and_killed([*NETDOCTOR, "preflight", "--vantage", "job", "--python", PYTHON, "--quiet"], FIRST_SEED, SEEDS))
"""
)

# argv: which of the other commands, the Python with torch, the first seed, how many seeds, a folder of node reports.
KILLED_OTHERS: Final = (
    _KILLING
    + r"""
WHAT, PYTHON, FIRST_SEED, SEEDS, REPORTS = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
for stream in ("/srv", "/run/killed"):
    os.makedirs(stream, exist_ok=True)
JOB = ["--vantage", "job", "--python", PYTHON, "--quiet"]
os.environ["NETDOCTOR_TOKEN"] = "0123456789abcdef" * 2
TOGETHER = [*NETDOCTOR, "allreduce", "--nodes", "2", "--master", "127.0.0.1:29400", "--wait", "20", "--stall", "5",
    "--python", PYTHON, "--quiet"]
LINES = [f"n{i % 4}:{100 + i % 4}:{100 + i % 4} [{i % 4}] NCCL INFO Bootstrap: Using eth0:10.0.0.{i % 4 + 1}<0>\n"
    for i in range(300)]
FIFO = "/run/killed/log"
def other_node():
    "The second node, which ends by itself when the first one is gone."
    second = subprocess.Popen([*TOGETHER, "--node-rank", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL)
    def end():
        try:
            second.wait(60)
        except subprocess.TimeoutExpired:
            second.kill(); second.wait()
            raise SystemExit("the other node did not end") from None
    return end
def writer():
    "A program whose output comes in pieces; it opens the pipe for both ways, and so waits for no reader."
    fd, stop = os.open(FIFO, os.O_RDWR), threading.Event()
    def write():
        for number, line in enumerate(LINES):
            os.write(fd, line.encode())
            if number % 30 == 0 and stop.wait(0.02): break
        deadline = time.monotonic() + 2
        while not stop.wait(0.01) and time.monotonic() < deadline and readers() < 1: pass
        os.close(fd)
    thread = threading.Thread(target=write); thread.start()
    def end():
        stop.set(); thread.join()
    return end
def readers():
    "Other processes that have the pipe open."
    found = 0
    for pid in processes():
        try:
            found += any(os.readlink(f"/proc/{pid}/fd/{n}") == FIFO for n in os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            pass
    return found
if WHAT == "log":
    os.mkfifo(FIFO)
COMMANDS = {
    "snapshot": ([*NETDOCTOR, "snapshot", *JOB, "-o", "/srv/out.json"], None, ("/srv/out.json",)),
    "preflight to a file": ([*NETDOCTOR, "preflight", *JOB, "--no-allreduce", "-o", "/srv/out.html"], None, ("/srv/out.html",)),
    "run": ([*NETDOCTOR, "run", "--python", PYTHON, "--quiet", "--", "sleep", "0.3"], None, ()),
    "allreduce": ([*TOGETHER, "--node-rank", "0"], other_node, ()),
    "log": ([*NETDOCTOR, "log", FIFO], writer, ()),
    "fleet": ([*NETDOCTOR, "fleet", "report", REPORTS, "-q", "-o", "/srv/fleet.html", "--lists", "/srv"], None,
        ("/srv/fleet.html", "/srv/passing_nodes.txt", "/srv/failing_nodes.txt")),
}
command, beside, own = COMMANDS[WHAT]
say(whole_and_killed(command, FIRST_SEED, SEEDS, beside, own))
"""
)
OTHERS: Final = ("snapshot", "preflight to a file", "run", "allreduce", "log", "fleet")

# argv: the Python, folders for LD_LIBRARY_PATH, a DGX's /sys.  Every variable that names a file or a port, planted.
PLANTED: Final = r"""
PYTHON, LIBRARIES, TREE = sys.argv[1:4]
sh(f"mount -t overlay over -o lowerdir={TREE}:/sys /sys")
os.makedirs("/planted"); os.chmod("/planted", 0o777)
PATHS = '''NCCL_DEBUG_FILE NCCL_TOPO_DUMP_FILE NCCL_GRAPH_DUMP_FILE NCCL_INSPECTOR_DUMP_DIR NCCL_PROFILE_EVENT_DUMP
    TORCH_FR_DUMP_TEMP_FILE TORCH_NCCL_DEBUG_INFO_TEMP_FILE TORCH_NCCL_DEBUG_INFO_PIPE_FILE TORCH_TRACE TORCH_LOGS_OUT
    UCX_LOG_FILE UCX_STATS_DEST UCX_PROFILE_FILE FI_LOG_FILE VERBS_LOG_FILE MLX5_DEBUG_FILE SHARP_COLL_LOG_FILE CUDA_LOG_FILE
    CUDA_COREDUMP_FILE LD_DEBUG_OUTPUT LD_PROFILE_OUTPUT MALLOC_TRACE LLVM_PROFILE_FILE GCOV_PREFIX PYTHONPYCACHEPREFIX
    NCCL_RAS_DUMP_FILE KINETO_CONFIG COVERAGE_FILE CPUPROFILE HEAPPROFILE'''.split()
PORTS = {"NCCL_COMM_ID": 20001, "NCCL_RAS_ADDR": 20002}
dialled = []
listener = socket.create_server(("127.0.0.1", PORTS["NCCL_COMM_ID"]))
listener.settimeout(0.01)
bound, stop = set(), threading.Event()
def watch():
    while not stop.is_set():
        bound.update(x for x in listening() if x[1] in (20002, 28028))
        try:
            dialled.append(listener.accept()[1])
        except TimeoutError:
            pass
planted = {name: f"/planted/{name}" for name in PATHS}
planted |= {name: f"127.0.0.1:{port}" for name, port in PORTS.items()}
planted |= {"NCCL_DEBUG": "TRACE", "UCX_LOG_LEVEL": "trace", "FI_LOG_LEVEL": "debug", "LD_DEBUG": "libs",
    "NCCL_RAS_ENABLE": "1", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "NCCL_INSPECTOR_ENABLE": "1",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1"}
environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "LD_LIBRARY_PATH": LIBRARIES, **planted}
before = written()
watcher = threading.Thread(target=watch); watcher.start()
command = [*NETDOCTOR, "preflight", "--vantage", "job", "--python", PYTHON, "--quiet", "-f", "json"]
done = subprocess.run(command, env=environment, capture_output=True, text=True)
left = settle()
stop.set(); watcher.join()
# What the loader itself wrote before netdoctor's first line is not ours: LD_DEBUG_OUTPUT of its own process.
say({"exit": done.returncode, "report": json.loads(done.stdout or "null"), "err": done.stderr[-500:], "left": left,
     "written": sorted(f for f in written() - before if not f.startswith("/run/netdoctor/netdoctor")),
     "bound": sorted(bound), "dialled": dialled})
"""
