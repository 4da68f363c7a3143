"""prl: token-exact chat rendering and plugins for reinforcement learning on language models."""

from __future__ import annotations

__version__ = "0.1.0"
