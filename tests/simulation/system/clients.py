"""Clients of a simulation: each executes scripts and repeats a request until it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.errors import EventInvalidError, InstanceNotFoundError, InstanceTerminalError, RunError, StoreError
from holdfast.testing.simulation.faults import Faults
from simulation.features.bulk import attributes
from simulation.features.table import REQUESTS
from simulation.programs.names import PROGRAMS
from simulation.system.faults import Fault
from simulation.system.node import Node
from simulation.system.workload import Instance, Request, Script, Workload

_RETRY_SECONDS = 0.2
_REORDERING_SECONDS = 0.5
_MAX_REPEAT_SECONDS = 1.5
_RESULT_TIMEOUT_SECONDS = 5


class Clients:
    """The clients. ``note`` adds an entry to the trace; ``removed`` returns True if an instance was deleted."""

    def __init__(
        self, workload: Workload, faults: Faults, note: Callable[[str, str], None], removed: Callable[[str], bool]
    ) -> None:
        self._workload = workload
        self._faults = faults
        self._note = note
        self._removed = removed

    async def follow(self, script: Script, node: Node) -> None:
        """Execute the remaining requests of a script."""
        instance = self._workload.instances[script.instance]
        while not script.finished:
            request = script.requests[script.done]
            await asyncio.sleep(request.after)
            request.after = _RETRY_SECONDS
            try:
                await self._send_with_faults(request, instance, node)
            except (StoreError, InstanceNotFoundError, TimeoutError) as error:
                self._note(node.name, f"{request.verb} {instance.id}: {type(error).__name__}, and tries again")
                if not (isinstance(error, InstanceNotFoundError) and self._removed(instance.id)):
                    continue
            except _refusals(request) as error:
                self._note(node.name, f"{request.verb} {instance.id}: {type(error).__name__}")
                if request.repeats(REQUESTS):
                    continue
            else:
                self._note(node.name, f"{request.verb} {instance.id} is acknowledged")
            script.done += 1

    async def _send_with_faults(self, request: Request, instance: Instance, node: Node) -> None:
        """Send a request. Some requests are delayed, and some are sent twice: at once, or the second one later."""
        place = f"{instance.id}.{request.verb}.{request.payload}"
        if self._faults.at([Fault.REORDERED_REQUEST], request.verb, f"late.{place}"):
            await asyncio.sleep(_REORDERING_SECONDS)
        if request.verb == "result" or not self._faults.at([Fault.REPEATED_REQUEST], request.verb, place):
            await self._send(request, instance, node)
            return
        delay = max(0.0, self._faults.draw(f"twice.{place}").uniform(-_MAX_REPEAT_SECONDS, _MAX_REPEAT_SECONDS))
        both = [self._send(request, instance, node), self._send_later(delay, request, instance, node)]
        errors = [error for error in await asyncio.gather(*both, return_exceptions=True) if error is not None]
        if len(errors) == len(both):
            raise errors[0]

    async def _send_later(self, seconds: float, request: Request, instance: Instance, node: Node) -> None:
        await asyncio.sleep(seconds)
        await self._send(request, instance, node)

    async def _send(self, request: Request, instance: Instance, node: Node) -> None:
        client, workflow, name = node.client, instance.workflow, instance.id
        match request.verb:
            case "start":
                params = [instance.params, []] if workflow in PROGRAMS else instance.params
                await client.start(workflow, params, id=name, search=attributes(name))
                instance.started = True
            case "result":
                await self._result(instance, node)
            case "trigger":
                await client.schedules.trigger(request.payload)
            case "event" | "message":
                event = f"{request.type}.{request.payload}"
                await client.events.send(workflow, name, request.type, request.payload, event_id=event)
                instance.acknowledged.add(event)
            case "misfit":
                try:
                    await client.events.send(workflow, name, request.type, request.payload)
                except EventInvalidError:
                    return
                instance.accepted_invalid.append(request.payload)
            case verb:
                instance.control_requests.add(verb)
                if verb == "check":
                    instance.unfit += await node.check()
                await REQUESTS[verb].send(client, workflow, name, request.payload)
                instance.acknowledged_requests.add(verb)

    async def _result(self, instance: Instance, node: Node) -> None:
        handle = await node.client.get(instance.workflow, instance.id)
        try:
            result = await handle.result(timeout=_RESULT_TIMEOUT_SECONDS)
        except RunError as error:
            self._note(node.name, f"receives the end of {instance.id}: {type(error).__name__}")
        else:
            self._note(node.name, f"receives the result of {instance.id}")
            instance.results.append(result)


def _refusals(request: Request) -> tuple[type[Exception], ...]:
    """Errors that answer a request on a run that is in no state for it."""
    refused = REQUESTS[request.verb].refused if request.verb in REQUESTS else ()
    return (InstanceTerminalError, *refused)
