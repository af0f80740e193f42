"""Asks a bank what an amount is worth in another account's currency: one read, no write.

Plain `wasi:http` through the bindings that the build generates; no library of the host's. It
holds no secret: the grant adds it.
"""

import asyncio
import json
from urllib.parse import quote, urlencode, urlsplit

import poll_loop
from componentize_py_types import Err
from poll_loop import PollLoop, Stream
from wit_world import exports
from wit_world.exports.tool import (
    DeclaredEffect,
    Failure_Broken,
    Failure_InvalidArguments,
    Failure_Refused,
    Failure_TryLater,
    Manifest,
    PreviewField,
    ToolPreview,
)
from wit_world.imports.types import (
    ErrorCode_HttpRequestDenied,
    Fields,
    Method_Get,
    OutgoingBody,
    OutgoingRequest,
    Scheme_Http,
    Scheme_Https,
)

# Where the real bank answers.
API = "https://api.bank.example"

ACCOUNT = {"type": "string", "minLength": 1, "maxLength": 64}
INPUT = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "additionalProperties": False,
    "required": ["from", "to", "amount", "currency"],
    "properties": {
        "from": ACCOUNT | {"description": "The account that would pay."},
        "to": ACCOUNT | {"description": "The account that would get it."},
        "amount": {
            "type": "integer",
            "minimum": 1,
            "maximum": 9007199254740991,
            "description": "In the currency's minor unit: 1250 with EUR is 12.50 EUR.",
        },
        "currency": {"type": "string", "pattern": "^[A-Za-z]{3}$", "description": "ISO 4217, for instance EUR."},
        "api_base": {
            "type": "string",
            "format": "uri",
            "pattern": "^https?://",
            "maxLength": 255,
            "description": "For a local provider: where it listens. Leave it out for the real one.",
        },
    },
}
OUTPUT = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["rate", "fee"],
    "properties": {
        "rate": {"type": "number", "description": "How much of the other currency one unit is."},
        "fee": {"type": "integer", "description": "What the bank takes, in the currency's minor unit."},
    },
}


class Tool(exports.Tool):
    def describe(self) -> Manifest:
        return Manifest(
            name="exchange-rate",
            version="0.1.0",
            title="Exchange rate",
            description="What an amount would be worth and cost between two accounts. Changes nothing.",
            input_schema=json.dumps(INPUT),
            output_schema=json.dumps(OUTPUT),
            effects=[DeclaredEffect("api.bank.example", ["GET"], "Asks for a quote with GET /quote.")],
        )

    def preview(self, arguments: str) -> ToolPreview:
        said = json.loads(arguments)
        shown = [("From", said["from"]), ("To", said["to"]), ("Amount", f"{said['amount']} {said['currency']}")]
        # Said only when it is not the real one: somebody may want to notice.
        if "api_base" in said:
            shown.append(("Bank", said["api_base"]))
        return ToolPreview("Exchange rate", [PreviewField(label, value) for label, value in shown])

    def invoke(self, arguments: str) -> str:
        said = json.loads(arguments)
        base = said.get("api_base", API).rstrip("/")
        query = urlencode({name: said[name] for name in ("from", "to", "amount", "currency")}, quote_via=quote)
        loop = PollLoop()
        asyncio.set_event_loop(loop)
        status, retry_after, body = loop.run_until_complete(get(f"{base}/quote?{query}"))
        if status in (408, 425, 429) or status >= 500:
            raise Err(Failure_TryLater(retry_after))
        if status != 200:
            raise Err(Failure_Refused(f"the bank answered {status}: {body[:500].decode(errors='replace')}"))
        try:
            answer = json.loads(body)
            return json.dumps({"rate": answer["rate"], "fee": answer["fee"]})
        except (ValueError, TypeError, KeyError) as error:
            raise Err(Failure_Broken(f"the bank's answer is not understood: {error!r}"))


async def get(url: str) -> tuple[int, int | None, bytes]:
    """Status, `retry-after` in seconds if there is one, body."""
    parts = urlsplit(url)
    if not parts.netloc:
        raise Err(Failure_InvalidArguments("`api_base` names no host"))
    request = OutgoingRequest(Fields.from_list([("accept", b"application/json")]))
    request.set_method(Method_Get())
    request.set_scheme(Scheme_Https() if parts.scheme == "https" else Scheme_Http())
    request.set_authority(parts.netloc)
    request.set_path_with_query(f"{parts.path}?{parts.query}")
    OutgoingBody.finish(request.body(), None)
    try:
        response = await poll_loop.send(request)
    except Err as error:
        if isinstance(error.value, ErrorCode_HttpRequestDenied):
            raise Err(Failure_Refused("the grant does not let it ask the bank"))
        # A read that got no answer may be made again.
        raise Err(Failure_TryLater(None))
    after = response.headers().get("retry-after")
    body = bytearray()
    stream = Stream(response.consume())
    while (chunk := await stream.next()) is not None:
        body += chunk
    return response.status(), int(after[0]) if after and after[0].isdigit() else None, bytes(body)
