"""What this device is, found out once: by whoever asks first, or by the first builder."""

from __future__ import annotations

import threading

from edge_agent.agent.builders import Builder
from edge_agent.config import Settings
from edge_agent.devices import Device


class Prober:
    """Finds the compute units of this device when somebody asks for them, once: it takes a second
    of processor time, which a model that is loaded at the start needs more."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._probing = threading.Lock()
        self.known: Device | None = None
        """What was found, as far as anybody asked."""

    def learn(self, device: Device) -> None:
        """A builder found out."""
        self.known = device

    def device(self) -> Device:
        """The device; may block for the probe.

        Raises:
            EdgeAgentError: it could not be probed.
        """
        with self._probing:
            if self.known is None:
                builder = Builder(self._settings, is_background=True)
                try:
                    self.learn(builder.probe().device)
                finally:
                    builder.close()
            assert self.known is not None
            return self.known
