"""A Flask application, and any other program without an event loop, uses the blocking client of an app.

The program calls its own application without a network.
Run it: python examples/flask_orders.py
"""

from flask import Flask

from holdfast import Context, Holdfast

app = Holdfast("sqlite://")


@app.step
def charge(total: int) -> str:
    return f"payment of {total}"


@app.workflow
async def fulfil(ctx: Context, total: int) -> str:
    await ctx.stream("progress").write("begun")
    return await charge(total)


web = Flask(__name__)
client = app.sync(worker=True)  # without worker=True other processes execute the runs


@web.post("/orders/<id>/<int:total>")
def place(id: str, total: int) -> tuple[dict[str, str], int]:
    run = client.start(fulfil, total, id=id)
    return {"id": run.id}, 202


@web.get("/orders/<id>")
def show(id: str) -> dict[str, str]:
    run = client.get(fulfil, id)
    return {"status": run.status().status, "result": run.result(timeout="10 seconds")}


def main() -> None:
    with client:
        browser = web.test_client()
        print(browser.post("/orders/o-7/125").status)
        result = browser.get("/orders/o-7").json or {}
        print(result["result"])
        print([item.value for item in client.get(fulfil, "o-7").stream("progress")])


if __name__ == "__main__":
    main()
