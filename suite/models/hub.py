"""Checkpoints by their Hugging Face id, kept where huggingface_hub keeps them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from suite.errors import UserError
from suite.models.cache import Progress
from suite.models.config_json import read_shape

NEEDED = ["*.json", "*.safetensors", "tokenizer*"]


def hub_folder(model_id: str, progress: Progress) -> Path:
    """The folder of `model_id`, fetched where huggingface_hub's cache has none.

    Uses HF_TOKEN, HF_HOME and HF_HUB_OFFLINE as huggingface_hub does. The
    configuration comes first, so an architecture the suite cannot run costs a
    few kilobytes. Raises UserError where the model is missing or gated, the
    network fails, or the disk fills up.
    """
    progress(f"{model_id}: looking on Hugging Face; the model's own terms of use apply")
    read_shape(fetch(model_id, ["config.json"]))
    progress(f"{model_id}: fetching what is not in the cache yet")
    return fetch(model_id, NEEDED)


def fetch(model_id: str, patterns: list[str]) -> Path:
    """The snapshot's folder with the files that match `patterns`."""
    # Here and not above: it takes half a second, and most runs never come here.
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    # No message of the library's is repeated: it may quote the request.
    try:
        return Path(snapshot_download(model_id, allow_patterns=patterns))
    except GatedRepoError:
        problem = "is gated"
        remedy = f"accept its terms at https://huggingface.co/{model_id} and set HF_TOKEN"
    except RepositoryNotFoundError:
        problem = "is not on Hugging Face or is private, and no folder here has that name"
        remedy = "check the spelling, set HF_TOKEN"
    except HFValidationError:
        problem = "is no Hugging Face id"
        remedy = "write ORGANISATION/NAME"
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        problem = "is not in the Hugging Face cache and huggingface.co was not reached"
        remedy = "connect to the network once and run again"
    except HfHubHTTPError as failure:
        problem = f"was refused by Hugging Face with HTTP status {failure.response.status_code}"
        remedy = "try again later"
    except httpx.HTTPError as failure:
        problem = f"broke off while being fetched ({type(failure).__name__})"
        remedy = "run again, which resumes"
    except OSError as failure:
        if failure.errno in (errno.ENOSPC, errno.EDQUOT):
            problem = "does not fit on the disk of the Hugging Face cache"
            remedy = "make room, set HF_HOME to a folder on a larger disk"
        else:
            reason = os.strerror(failure.errno) if failure.errno else type(failure).__name__
            problem = f"could not be fetched ({reason})"
            remedy = "check the network and HF_HOME"
    raise UserError(f"model {model_id} {problem}; {remedy} or pass --model FOLDER")
