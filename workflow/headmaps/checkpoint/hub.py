"""The Hugging Face Hub as a source of checkpoints: read by range (`HubStore`) or fetched whole.

What is where: `ranges` asks a server for bytes and checks the answer; `hub_environment` says which Hub and which
commit; `hub_store` is a repository at that commit; `hub_files` fetches whole files; `hub_errors` says what went wrong;
`hub_progress` shows how far it is.
"""

from headmaps.checkpoint.hub_environment import pull_request, resolve_revision
from headmaps.checkpoint.hub_files import fetch_files_from_hub
from headmaps.checkpoint.hub_store import HubFile, HubStore

__all__ = ["HubFile", "HubStore", "fetch_files_from_hub", "pull_request", "resolve_revision"]
