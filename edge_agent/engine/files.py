"""How a session is opened from what a deployment says of it."""

from __future__ import annotations

from pathlib import Path

from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.wire.parts import SubgraphFile


def open_file(
    file: SubgraphFile, cores: tuple[int, ...], *, is_idle: bool = False, is_lean: bool = False
) -> Session:
    """Load what a worker serves; its threads are bound to `cores` where it uses them all.

    `is_idle`: give way to threads that serve meanwhile (see `Session.open_idle`); `is_lean`: leave
    out the packing of weights.

    Raises: ModelRefused, RuntimeUnavailable.
    """
    if file.use is not None:
        return Session.open(
            Path(file.path),
            threads=file.threads or 1,
            level=OptimisationLevel(file.level),
            use=file.use,
            is_whole=not file.falls_back,
        )
    is_pinned = not file.is_plain and file.threads == len(cores) and file.threads > 1
    open_session = Session.open_idle if is_idle else Session.open
    return open_session(
        Path(file.path),
        threads=file.threads,
        level=OptimisationLevel(file.level),
        pinned_cores=cores if is_pinned else None,
        plain=file.is_plain,
        lean=is_lean,
    )
