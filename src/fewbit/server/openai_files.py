"""`/v1/files`, as OpenAI's clients call it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Literal

import msgspec
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route

from .bodies import JsonResponse, body_parts
from .errors import ApiError
from .files import FileObject, FileStore
from .ignored import note_ignored
from .openai_responses_store import owner_of
from .paging import page_of
from .state import state_of

MAX_LISTED = 10_000
FORM_BYTES = 64 << 10  # of an upload beside the file


class FileUpload(msgspec.Struct):
    """The form of an upload."""

    file: bytes
    purpose: Literal["batch"]


class FileList(msgspec.Struct):
    data: list[FileObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class DeletedFile(msgspec.Struct):
    id: str
    deleted: bool = True
    object: Literal["file"] = "file"


def files_of(request: Request) -> FileStore:
    """The files of a server that keeps them."""
    files = state_of(request).files
    if files is None:
        raise ApiError(404, "this server keeps no files and runs no batches; fewbit serve --files-dir FOLDER does",
                       code="not_enabled")  # fmt: skip
    return files


async def upload(request: Request) -> Response:
    files, most = files_of(request), state_of(request).settings.max_file_bytes
    form = await _form(request, most + FORM_BYTES)
    try:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise ApiError(400, "an upload needs a file in the field file", "file", "invalid_request")
        if form.get("purpose") != "batch":
            raise ApiError(400, "purpose must be batch", "purpose", "invalid_request")
        size = file.size or 0
        if size > most:
            raise ApiError(413, f"a file has at most {most} bytes here, this one has {size}", "file", "file_too_large")
        note_ignored(request, sorted(set(form) - {"file", "purpose"}))
        with files.room(owner_of(request), size):
            kept = await asyncio.to_thread(files.add, owner_of(request), file.filename or "file", "batch", file.file)
    finally:
        await form.close()
    return JsonResponse(kept)


async def list_files(request: Request) -> Response:
    found = files_of(request).owned_by(owner_of(request))
    if (purpose := request.query_params.get("purpose")) is not None:
        found = [one for one in found if one.purpose == purpose]
    page, has_more = page_of(request.query_params, found, lambda file: file.id, MAX_LISTED, MAX_LISTED)
    ids = [one.id for one in page]
    return JsonResponse(FileList(page, has_more, ids[0] if ids else None, ids[-1] if ids else None))


async def get_file(request: Request) -> Response:
    return JsonResponse(files_of(request).get(request.path_params["file_id"], owner_of(request)))


async def get_content(request: Request) -> Response:
    files, name = files_of(request), request.path_params["file_id"]
    files.get(name, owner_of(request))
    headers = {"Content-Disposition": "attachment", "X-Content-Type-Options": "nosniff"}
    return FileResponse(files.path(name), headers=headers, media_type="application/octet-stream")


async def delete_file(request: Request) -> Response:
    files, name = files_of(request), request.path_params["file_id"]
    batches = state_of(request).batches
    files.get(name, owner_of(request))
    if batches is not None and batches.is_reading(name):
        raise ApiError(409, f"the file {name} is the input of a batch that is not over; cancel the batch first",
                       "file_id", "file_in_use")  # fmt: skip
    files.remove(name, owner_of(request))
    return JsonResponse(DeletedFile(name))


async def _form(request: Request, most: int) -> FormData:
    """A form with one file, read to a temporary file."""
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("multipart/form-data"):
        raise ApiError(400, "an upload is multipart/form-data", code="invalid_request")

    async def parts() -> AsyncGenerator[bytes, None]:
        async for part in body_parts(request, most):
            yield part

    try:
        return await MultiPartParser(request.headers, parts(), max_files=1, max_fields=16, max_part_size=4096).parse()
    except MultiPartException as error:
        raise ApiError(400, f"the upload cannot be read: {error.message[:200]}", code="invalid_request") from None
    except (KeyError, ValueError) as error:
        raise ApiError(400, f"the upload cannot be read: {str(error)[:200]}", code="invalid_request") from None


ROUTES: list[BaseRoute] = [
    Route("/v1/files", upload, methods=["POST"]),
    Route("/v1/files", list_files),
    Route("/v1/files/{file_id}", get_file),
    Route("/v1/files/{file_id}", delete_file, methods=["DELETE"]),
    Route("/v1/files/{file_id}/content", get_content),
]
