"""Admin pages of runs: a list, and a page for each run with ``why`` and the actions of an operator.

Users need the permission ``holdfast.view_run`` to read and ``holdfast.change_run`` to act. Each action has the user as
the actor of its audit record.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from holdfast.core.actor import acting_as
from holdfast.core.model import Status
from holdfast.errors import HoldfastError, InvalidOptionError
from holdfast.ext.django.models import Run
from holdfast.ext.django.project import client
from holdfast.sync_client import SyncHandle

_PAGE = 50
_WITH_REASON = ("cancel", "terminate", "retry")
_ACTIONS = ("pause", "resume", "restart", *_WITH_REASON)


@admin.register(Run)
class RunAdmin(admin.ModelAdmin):
    """Pages that read through the client; nothing of Django's model layer is used."""

    def has_add_permission(self, _request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, _request: HttpRequest, _obj: Any = None) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The list of runs, the newest first, by workflow, status and the beginning of the id."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        chosen = {name: request.GET.get(name, "") for name in ("workflow", "status", "id_prefix")}
        given = {name: value for name, value in chosen.items() if value}
        try:
            page = client().list(**given, limit=_PAGE, cursor=request.GET.get("cursor"))
        except HoldfastError as error:  # the URL has an invalid cursor or status
            messages.error(request, str(error))
            page = client().list(limit=_PAGE)
        rows = [{"run": run, "url": _url(f"{run.workflow_name}/{run.id}")} for run in page.items]
        context = {"rows": rows, "cursor": page.cursor, "chosen": chosen, "statuses": [str(one) for one in Status]}
        return self._page(request, "holdfast/runs.html", "Runs", context | (extra_context or {}))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The page of one run: why it waits, its steps, the runs around it, and the actions."""
        del form_url
        if not self.has_view_permission(request):
            raise PermissionDenied
        workflow, _, instance_id = unquote(object_id).partition("/")
        try:
            run = client().get(workflow, instance_id)
        except HoldfastError as error:  # no such instance or workflow
            raise Http404(str(error)) from error
        if request.method == "POST":
            return self._act(request, run)
        found = run.describe()
        around = [pid for pid in (found.parent, *(one.pid for one in found.children), *found.links) if pid]
        context = {
            "found": found,
            "pid": run.pid,
            "steps": run.history().steps,
            "around": [(pid, _url(pid)) for pid in around],
            "actions": _ACTIONS,
            "may_act": self.has_change_permission(request),
        }
        return self._page(request, "holdfast/run.html", run.pid, context | (extra_context or {}))

    def _act(self, request: HttpRequest, run: SyncHandle[Any]) -> HttpResponse:
        if not self.has_change_permission(request):
            raise PermissionDenied
        action, reason = request.POST.get("action", ""), request.POST.get("reason") or None
        try:
            with acting_as(request.user.get_username()):
                _do(run, action, reason)
        except HoldfastError as error:
            messages.error(request, str(error))
        else:
            messages.success(request, f"{run.pid}: {action}")
        return HttpResponseRedirect(_url(run.pid))

    def _page(self, request: HttpRequest, template: str, title: str, context: dict[str, Any]) -> HttpResponse:
        common = self.admin_site.each_context(request)
        return TemplateResponse(request, template, {**common, "title": title, "opts": self.opts, **context})


def _do(run: SyncHandle[Any], action: str, reason: str | None) -> None:
    if action not in _ACTIONS:
        raise InvalidOptionError(f"there is no action {action!r}; use one of {', '.join(_ACTIONS)}")
    method = getattr(run, action)
    if action in _WITH_REASON:
        method(reason=reason)
    else:
        method()


def _url(pid: str) -> str:
    return str(reverse("admin:holdfast_run_change", args=[quote(pid)]))
