"""Encrypted and compressed values, a secret, and a large value in a file: what the database contains, and a new key."""

import asyncio
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from holdfast import Context, Holdfast
from holdfast.errors import PayloadError
from holdfast.payloads import Aes, Secret, Zstd

OLD, NEW = os.urandom(32), os.urandom(32)


@dataclass
class Account:
    owner: str
    token: Secret[str]


def make_app(folder: Path, keys: dict[str, bytes]) -> Holdfast:
    app = Holdfast(f"sqlite:///{folder}/app.db", codec=[Zstd(), Aes(keys)], blobs=f"file://{folder}/blobs")

    @app.step
    async def download(account: Account) -> str:
        return "".join(f"{account.owner} {number}\n" for number in range(200)) + os.urandom(100_000).hex()

    @app.workflow
    async def statement(_ctx: Context, account: Account) -> int:
        return len(await download(account))

    return app


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        app = make_app(folder, {"k1": OLD})
        async with app:
            run = await app.start("statement", Account("ann", Secret("token-of-ann")), id="s-1")
            print("characters:", await run.result())
            print("params:", (await run.describe()).params)
        stored = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
        print("plain text in the files:", b"token-of-ann" in stored or b"ann 199" in stored)
        print("blobs:", len([*folder.glob("blobs/*/*")]))

        async with make_app(folder, {"k2": NEW, "k1": OLD}) as rotated:
            print("with both keys:", await (await rotated.get("statement", "s-1")).result())
        async with make_app(folder, {"k2": NEW}) as later:
            try:
                await (await later.get("statement", "s-1")).result()
            except PayloadError as error:
                print("with the new key only:", error)


asyncio.run(main())
