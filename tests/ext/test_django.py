"""The app for Django, with real Django on SQLite and PostgreSQL."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import AppClosedError, InstanceNotFoundError, RunFailedError, SchemaVersionError
from holdfast.payloads import Aes
from postgres_server import new_database

WAIT = 20


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The project, set up once for this process, with its tables."""
    import django
    from django.core.management import call_command
    from django.db import connections

    folder = tmp_path_factory.mktemp("django")
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "ext.django_project.settings",
        "HOLDFAST_TEST_DJANGO_FILE": str(folder / "site.sqlite3"),
        "HOLDFAST_TEST_DJANGO_URL": new_database(keep=True, migrated=True),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        django.setup()
    from holdfast.ext.django import project as module

    for alias in ("default", "pg"):
        call_command("migrate", run_syncdb=True, verbosity=0, database=alias)
    call_command("holdfast", "migrate")
    yield module
    module.close_client()
    connections.close_all()


@pytest.fixture(params=["default", "pg"])
def alias(project: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """The database of the project's app."""
    from django.test.utils import override_settings

    yield from _use(project, request.param, override_settings)


@pytest.fixture
def default(project: Any) -> Iterator[str]:
    from django.test.utils import override_settings

    yield from _use(project, "default", override_settings)


def _use(project: Any, alias: str, override_settings: Any) -> Iterator[str]:
    from django.db import connections

    registry = project.project_app().registry
    project.close_client()
    with override_settings(HOLDFAST={"DATABASE": alias}):
        project.project_app.cache_clear()
        project.project_app().registry = registry
        connections[alias].close()  # as in a new process, whose first connection opens the client
        yield alias
        project.close_client()
    project.project_app.cache_clear()
    project.project_app().registry = registry


@pytest.fixture
def worker(alias: str, project: Any) -> Iterator[Any]:
    app = project.project_app()
    app.worker_config = type(app.worker_config)(queues=("default", "mail"))
    with app.sync(worker=True) as client:
        yield client


def test_a_start_in_an_atomic_block_shares_its_transaction(alias: str, worker: Any, project: Any) -> None:
    from django.db import transaction

    from ext.django_project.shop.models import Order
    from holdfast.ext.django import client, send_event, start

    class Abort(Exception):
        pass

    with suppress(Abort), transaction.atomic(using=alias):
        lost = Order.objects.using(alias).create(total=1)
        start("fulfil", {"key": lost.pk, "database": alias}, id="lost")
        raise Abort
    with transaction.atomic(using=alias):
        order = Order.objects.using(alias).create(total=125)
        run = start("fulfil", {"key": order.pk, "database": alias}, id=f"order-{order.pk}")
        with suppress(Abort), transaction.atomic(using=alias):  # a savepoint
            start("fulfil", {"key": order.pk, "database": alias}, id="also-lost")
            raise Abort
    with transaction.atomic(using=alias):
        send_event("fulfil", run.id, "shipped")

    assert run.result(timeout=WAIT) == 125
    assert Order.objects.using(alias).get(pk=order.pk).paid
    for name in ("lost", "also-lost"):
        with pytest.raises(InstanceNotFoundError):
            client().get("fulfil", name)
    assert not Order.objects.using(alias).filter(total=1).exists()


def test_values_of_starts_in_django_are_encrypted_with_the_codec_of_the_settings(project: Any) -> None:
    from django.db import transaction
    from django.test.utils import override_settings

    from holdfast.ext.django import send_event, start

    file = Path(os.environ["HOLDFAST_TEST_DJANGO_FILE"])
    registry = project.project_app().registry
    project.close_client()
    with override_settings(HOLDFAST={"OPTIONS": {"codec": [Aes({"k1": b"k" * 32})]}}):
        project.project_app.cache_clear()
        project.project_app().registry = registry
        project.client()
        with transaction.atomic():
            run = start("told", "canary-5512", id="encrypted")
        send_event("told", run.id, "go", "canary-5512")
        try:
            with project.project_app().sync(worker=True):
                assert run.result(timeout=WAIT) == "canary-5512 canary-5512"
        finally:
            project.close_client()
            project.project_app.cache_clear()
            project.project_app().registry = registry

    stored = b"".join(path.read_bytes() for path in file.parent.glob(f"{file.name}*"))
    assert b"canary-5512" not in stored


def test_the_first_start_of_a_process_may_be_inside_an_atomic_block(default: str, project: Any) -> None:
    from django.db import connection, transaction

    from ext.django_project.shop.models import Order
    from holdfast.ext.django import start

    connection.close()
    project.close_client()

    with transaction.atomic():
        order = Order.objects.create(total=3)
        run = start("fulfil", {"key": order.pk, "database": "default"})

    assert run.status().status == "active"
    run.terminate()


def test_a_client_is_not_opened_inside_a_transaction_of_sqlite(default: str, project: Any) -> None:
    from django.db import connection, transaction

    connection.ensure_connection()
    project.close_client()

    with transaction.atomic(), pytest.raises(AppClosedError, match="outside of transaction"):
        project.start("fulfil", {})


def test_a_client_that_cannot_be_opened_does_not_stop_queries_of_django(
    default: str, project: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from django.db import connection

    from ext.django_project.shop.models import Order

    def refuse() -> None:
        raise SchemaVersionError("the tables are newer")

    connection.close()
    monkeypatch.setattr(project, "client", refuse)

    assert Order.objects.count() >= 0
    assert "the tables are newer" in caplog.text


def test_tasks_are_enqueued_executed_and_read(alias: str, worker: Any) -> None:
    from django.utils import timezone

    from ext.django_project.shop import tasks

    added = tasks.add.enqueue(2, b=3)
    mailed = tasks.mail.enqueue("ann@example.org")
    failed = tasks.broken.enqueue()
    told = tasks.attempt.enqueue("try")
    later = tasks.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1, 1)
    for result in (added, mailed, failed, told):
        with suppress(RunFailedError):
            worker.get("django.task", result.id).result(timeout=WAIT)
        result.refresh()

    assert added.status == "SUCCESSFUL"
    assert added.return_value == 5
    assert mailed.return_value == "sent to ann@example.org"
    assert told.return_value == f"try 1 {told.id}"
    assert failed.status == "FAILED"
    assert failed.errors[0].exception_class is LookupError
    assert "nobody" in failed.errors[0].traceback
    later.refresh()
    assert later.status == "READY"
    assert tasks.add.get_result(later.id).task.run_after == later.task.run_after
    worker.get("django.task", later.id).terminate()


def test_a_task_has_the_priority_and_the_queue_of_django(default: str, project: Any) -> None:
    from ext.django_project.shop import tasks
    from holdfast.ext.django.tasks import TaskResultDoesNotExist

    result = tasks.mail.using(priority=9).enqueue("bob@example.org")

    [urgent] = [one for one in project.client().queues() if one.name == "mail"]
    assert urgent.name == "mail"
    assert tasks.mail.get_result(result.id).task.priority == 9
    with pytest.raises(TaskResultDoesNotExist):
        tasks.mail.get_result("missing")
    project.client().get("django.task", result.id).terminate()


def test_the_admin_pages_show_runs_and_act_for_the_user(default: str, project: Any) -> None:
    from django.contrib.auth.models import Permission, User
    from django.test import Client

    User.objects.all().delete()
    User.objects.create_superuser("ann", password="p")
    reader = User.objects.create_user("bob", password="p", is_staff=True)
    reader.user_permissions.add(Permission.objects.get(codename="view_run"))
    run = project.start("fulfil", {"key": 1, "database": "default"}, id="a-b_c")
    ann, bob = Client(), Client()
    ann.login(username="ann", password="p")
    bob.login(username="bob", password="p")

    page = ann.get("/admin/holdfast/run/?workflow=fulfil&status=active")
    assert page.status_code == 200
    url = next(row["url"] for row in page.context_data["rows"] if row["run"].id == "a-b_c")
    detail = ann.get(url)
    assert detail.context_data["found"].why in detail.content.decode().replace("&#x27;", "'").replace("&quot;", '"')
    assert b"Actions" not in bob.get(url).content
    assert bob.post(url, {"action": "pause"}).status_code == 403
    assert ann.post(url, {"action": "terminate", "reason": "a test"}).status_code == 302

    assert run.status().status == "terminated"
    [record] = project.client().audit(run._handle).items
    assert (record.actor, record.action, record.reason) == ("ann", "terminate", "a test")
    assert ann.get("/admin/holdfast/run/fulfil_2Fmissing/change/").status_code == 404
    assert ann.get("/admin/holdfast/run/?status=wrong").status_code == 200
    assert Client().get(url).status_code == 302  # to the login


def test_settings_become_a_url(project: Any) -> None:
    from django.core.exceptions import ImproperlyConfigured

    url = project._postgresql_url({"NAME": "shop", "USER": "ann", "PASSWORD": "p/w", "HOST": "db1", "PORT": "5433"})
    socket = project._postgresql_url({"NAME": "shop", "HOST": "/run/pg", "OPTIONS": {"sslmode": "disable"}})

    assert url == "postgresql://ann:p%2Fw@db1:5433/shop"
    assert socket == "postgresql:///shop?host=/run/pg&sslmode=disable"
    with pytest.raises(ImproperlyConfigured, match="in memory"):
        project._sqlite_url("file:memorydb_default?mode=memory&cache=shared")


def test_the_command_passes_its_options_to_holdfast(default: str, project: Any, capsys: Any) -> None:
    from django.core.management import CommandError, call_command, load_command_class

    command = load_command_class("holdfast.ext.django", "holdfast")
    command.run_from_argv(["manage.py", "holdfast", "migrate", "--check"])
    printed = capsys.readouterr().out

    assert "up to date" in printed or "schema" in printed
    with pytest.raises(CommandError, match="worker"):
        call_command("holdfast", "nonsense")


def test_autodiscovery_registers_workflows_and_opens_nothing(project: Any) -> None:
    names = {definition.name for definition in project.project_app().registry}

    assert {"fulfil", "failing", "django.task"} <= names
    assert Path(os.environ["HOLDFAST_TEST_DJANGO_FILE"]).exists()
