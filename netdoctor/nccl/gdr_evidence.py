"""One GPU and one HCA: what NCCL would ask about them, and what the runs' NCCL logs prove."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from netdoctor.facts.gpu import Gpus
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.nccl_version import Version
from netdoctor.facts.rdma import RdmaDevice
from netdoctor.facts.runs import Run
from netdoctor.model import Kind, Unavailable, record
from netdoctor.nccl import gpudirect
from netdoctor.nccl.hcas import GpuPlace
from netdoctor.nccl.log.facts import SOCKET, Direction
from netdoctor.nccl.net_plugin import BUILT_IN
from netdoctor.nccl.transport import log_of


@record
class GdrProof:
    """Whether connections of this pair used GPUDirect RDMA, by direction; None: no such connection was shown."""

    send: bool | None = None  # the HCA reads the GPU's memory
    receive: bool | None = None  # the HCA writes the GPU's memory
    network: str | None = None  # "IB" "IBext_v8" "Libfabric" …
    run: Run | None = None
    unplaced: bool = False  # connections of this GPU without GPUDirect, of a device that the log does not name

    @property
    def shown(self) -> bool:
        return self.send is not None or self.receive is not None


def gdr_proof(runs: Iterable[Run], ordinal: int | None, hca: str, unnamed: bool = False) -> GdrProof:
    """``/GDRDMA`` on the NET connections of GPU `ordinal` through `hca`, over all runs.

    The line of a send speaks of the sender's GPU, that of a receive of the receiver's (NCCL src/transport/net.cc).  `unnamed`:
    connections of a plugin's network count, too, where neither run nor log names a device.
    """
    send: list[bool] = []
    receive: list[bool] = []
    network, used, unplaced = None, None, False
    for run in runs:
        log = log_of(run)
        if log is None or ordinal is None or "vias" in log.absent:
            continue
        named = run.experiment.path.device
        for via in log.vias:
            if via.transport != "NET" or via.gdrdma is None or via.direction == Direction.NONE:
                continue
            rank = via.src if via.direction == Direction.SEND else via.dst
            if via.gdrdma and not (run.finished and run.verified):
                continue  # connected, and no data came through: registration fails later (NVIDIA/nccl issue 1939)
            if via.detail == SOCKET or run.experiment.gpus[rank : rank + 1] != (ordinal,):
                continue
            devices = {named} if named else log.hcas(via)
            if not devices and unnamed and not log.devices and via.detail not in BUILT_IN:
                devices = {hca}
            if hca in devices:
                (send if via.direction == Direction.SEND else receive).append(via.gdrdma)
                network, used = via.detail, run
            unplaced |= not devices and not via.gdrdma
    return GdrProof(all(send) if send else None, all(receive) if receive else None, network, used, unplaced)


def gdr_mechanisms(
    version: Version, kernel: Kernel, gpus: Gpus, gpu: GpuPlace, device: RdmaDevice, enable: str | None
) -> gpudirect.Mechanisms:
    """Whether one of the two ways would serve this pair; `enable` is NCCL_DMABUF_ENABLE."""
    lost = Unavailable(Kind.NOT_READ, "libcuda was not asked")
    errno = device.provider if isinstance(device.provider, Unavailable) else device.provider.dmabuf_errno
    peer = gpudirect.peermem(version, kernel.modules, kernel.memory_peers)
    offered = gpu.visible.gpudirect_rdma if gpu.visible else lost
    dmabuf = gpudirect.dmabuf(version, gpus.cuda_driver, gpu.visible.dmabuf if gpu.visible else lost, errno, enable)
    if offered is True:
        return gpudirect.Mechanisms(peer, dmabuf)
    # NCCL asks the GPU before either way: src/plugin/net.cc, ncclGpuGdrSupport (2.18.3 to 2.32.3; before 2.27 src/net.cc)
    yes = None if isinstance(offered, Unavailable) else False
    why = f"attribute 116 of this GPU{' is 0' if yes is False else f': {offered}'}"
    return gpudirect.Mechanisms(
        *(replace(way, rule=None, yes=yes, why=why) if way.yes is not False else way for way in (peer, dmabuf))
    )


def gdr_sends(gpu: GpuPlace, count: int, setting: str | None, version: Version | None = None) -> gpudirect.Answer:
    """Whether a GPU's sends use GPUDirect; `setting` is NCCL_NET_GDR_READ, `count` the GPUs of the job here."""
    lost = Unavailable(Kind.NOT_READ)
    links = gpu.gpu.nvlinks if gpu.gpu else lost
    nvlink = links if isinstance(links, Unavailable) else any(links)
    return gpudirect.reads(gpu.gpu.capability if gpu.gpu else lost, nvlink, count, setting, version)
