"""Programs for `world.run`: netdoctor run and killed, and what differs afterwards."""

from __future__ import annotations

from typing import Final

# argv: the Python with torch, the first seed, how many seeds.  The lock file of root stays: removing it would let two hold it.
KILLED: Final = r"""
PYTHON, FIRST_SEED, SEEDS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ALLOWED = {"/run/netdoctor/netdoctor.lock"}
COMMAND = [*NETDOCTOR, "preflight", "--vantage", "job", "--python", PYTHON, "--quiet"]
def start():
    return subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
def after(before):
    left = settle()
    now = state()
    now["files"] = sorted(set(now["files"]) - ALLOWED)
    return {"changed": changed(before, now), "left": left}
before = state()
began = time.monotonic()
whole = start()
out, _ = whole.communicate()
took = time.monotonic() - began
result = {"exit": whole.returncode, "seconds": took, "report": out.decode(), **after(before), "killed": []}
for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
    draw = random.Random(seed)
    sign, delay = (signal.SIGKILL, signal.SIGTERM)[seed % 2], draw.uniform(0, took)
    process = start()
    try:
        process.communicate(timeout=delay)
    except subprocess.TimeoutExpired:
        process.send_signal(sign)
        process.communicate()
    result["killed"].append({"seed": seed, "signal": sign.name, "delay": delay, "exit": process.returncode, **after(before)})
say(result)
"""

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
environment = {**os.environ, "LD_LIBRARY_PATH": LIBRARIES, **planted}
before = written()
watcher = threading.Thread(target=watch); watcher.start()
command = [*NETDOCTOR, "preflight", "--vantage", "job", "--python", PYTHON, "--quiet", "-f", "json"]
done = subprocess.run(command, env=environment, capture_output=True, text=True)
left = settle()
stop.set(); watcher.join()
# What the loader itself wrote before netdoctor's first line is not ours: LD_DEBUG_OUTPUT of its own process.
say({"exit": done.returncode, "report": json.loads(done.stdout or "null"), "err": done.stderr[-500:], "left": left,
     "written": sorted(written() - before - {"/run/netdoctor/netdoctor.lock"}), "bound": sorted(bound), "dialled": dialled})
"""
