/** The bar of bulk actions: the choice of an action, its dry run, its reason, and its execution. */
import { get, instancePath, may, post, remove, serverNow } from "../core/api.js";
import { bulkFilter } from "../core/filter.js";
import { number, plural } from "../core/format.js";
import { useKeys } from "../core/keys.js";
import { usePolling, useResource } from "../core/resource.js";
import { splitPid } from "../core/router.js";
import { html, onText, useState } from "../core/view.js";
import { Button, IconButton, Problem } from "./basics.js";
import { toast, useSubmit } from "./overlay.js";
import { parseJson } from "../core/schema.js";
import { text } from "./text.js";

/** @typedef {import("../core/filter.js").Condition} Condition */

/** @type {Record<string, {label: string, icon: string, effect: string, only?: string, wants: (status: string) => boolean}>} */
const BULK = {
  retry: { label: "Retry", icon: "retry", effect: "would continue from their history, with fresh attempts", only: "errored", wants: (status) => status === "errored" },
  pause: { label: "Pause", icon: "pause", effect: "would be paused", wants: (status) => ["active", "waiting"].includes(status) },
  resume: { label: "Resume", icon: "play", effect: "would continue", only: "paused", wants: (status) => status === "paused" },
  sendEvent: { label: "Send event", icon: "mail", effect: "would get the event", wants: (status) => ["active", "waiting", "paused"].includes(status) },
  cancel: { label: "Cancel", icon: "ban", effect: "would be cancelled; their code may clean up", wants: (status) => ["active", "waiting", "paused"].includes(status) },
  terminate: { label: "Terminate", icon: "close", effect: "would end at once, without clean-up", wants: (status) => ["active", "waiting", "paused"].includes(status) },
  delete: { label: "Delete", icon: "trash", effect: "would be deleted with their history", wants: (status) => ["complete", "errored", "cancelled", "terminated"].includes(status) },
};
export const MANY = 100;
const POLL_MS = 700;
const COUNT_MS = 2000;

/**
 * The dry run of a bulk action on a filter. Runs change while its count is shown, so a small one is counted again; a
 * large one is not, because the user types it, and counting it costs the server more.
 * @param {Record<string, any> | null} body of the request; `null`: nothing to count
 */
export function useDryRun(body) {
  const { data, error, refresh } = useResource(body && JSON.stringify(body), () => post("_bulk", { ...body, dryRun: true }));
  const count = /** @type {number | null} */ (data?.count ?? null);
  usePolling(() => {
    if (body && count !== null && count <= MANY) refresh();
  }, COUNT_MS);
  return { count, sample: data?.sample ?? [], error, refresh };
}

/** Follow a bulk action until its end. @param {string} id @param {string} label @param {() => void} done */
export async function follow(id, label, done) {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    const job = await get(`_bulk/${encodeURIComponent(id)}`).catch(() => null);
    if (job === null) return;
    if (job.status !== "complete") continue;
    const rest = [job.failed ? `${number(job.failed)} failed` : "", job.skipped ? `${number(job.skipped)} left out` : ""].filter(Boolean).join(", ");
    toast(`${label}: ${plural(job.done ?? 0, "run")}${rest ? `, ${rest}` : ""}`, { state: job.failed ? "errored" : "complete" });
    done();
    return;
  }
}

/**
 * Apply an action to selected runs, one request each: the page has at most some dozens.
 * @param {string} action
 * @param {string[]} pids
 * @param {any} body
 * @param {string} label
 */
async function applyToEach(action, pids, body, label) {
  let done = 0;
  /** @type {string[]} */
  const problems = [];
  for (const pid of pids) {
    const { workflow, id } = splitPid(pid);
    try {
      if (action === "delete") await remove(instancePath(workflow, id), body);
      else await post(instancePath(workflow, id, action === "sendEvent" ? "events" : action), body);
      done += 1;
    } catch (error) {
      problems.push(`${pid}: ${error.message}`);
    }
  }
  toast(`${label}: ${plural(done, "run")}${problems.length ? `, ${problems.length} failed; ${problems[0]}` : ""}`, { state: problems.length ? "errored" : "complete" });
}

/**
 * @param {{selected: Set<string>, whole: boolean, conditions: Condition[], rows: any[], onWhole: () => void, onClear: () => void, onDone: () => void}} props
 */
export function BulkBar({ selected, whole, conditions, rows, onWhole, onClear, onDone }) {
  const [action, setAction] = useState("");
  const [values, setValues] = useState({ reason: "", typed: "", type: "", payload: "" });
  const chosen = BULK[action];
  const filter = { ...(chosen?.only ? { status: chosen.only } : {}), ...bulkFilter(conditions, serverNow()) };
  const event = action === "sendEvent" ? { arguments: { type: values.type, payload: parseJson(values.payload || "null").value } } : {};
  const dry = useDryRun(whole && action && (action !== "sendEvent" || values.type) ? { action, filter, ...event } : null);
  const statuses = new Map(rows.map((run) => [`${run.workflowName}/${run.id}`, run.details.status]));
  const leftOut = whole || !chosen ? [] : [...selected].filter((pid) => !chosen.wants(statuses.get(pid) ?? ""));
  const count = whole ? dry.count : selected.size - leftOut.length;
  const wantsNumber = count !== null && (count > MANY || action === "delete");
  const ready = count !== null && count > 0 && (action !== "sendEvent" || values.type !== "") && (!wantsNumber || values.typed === String(count));
  /** @param {"reason" | "typed" | "type" | "payload"} key */
  const input = (key) => onText((value) => setValues((old) => ({ ...old, [key]: value })));

  const { submit, busy, problem } = useSubmit(async () => {
    const reason = values.reason || undefined;
    if (!whole) {
      const pids = [...selected].filter((pid) => !leftOut.includes(pid));
      onClear();
      await applyToEach(action, pids, { ...(action === "sendEvent" ? event.arguments : {}), reason }, chosen.label);
      onDone();
      return;
    }
    const job = await post("_bulk", { action, filter, dryRun: false, reason, ...event });
    toast(`${chosen.label} of ${plural(count ?? 0, "run")} has begun`, { state: "active" });
    void follow(job.id, chosen.label, onDone);
    onClear();
  });
  useKeys({ "Ctrl+Enter": () => void (ready && submit()), Escape: onClear });
  return html`<div class="bulk" role="region" aria-label="Bulk actions"><div class="row wrap"><b>${whole ? "All runs of this filter" : `${number(selected.size)} selected`}</b>
      ${!whole && conditions.length ? html`<button type="button" class="link" onClick=${onWhole}>Select all in this filter</button>` : null}
      <span class="right row wrap">${Object.entries(BULK).filter(([key]) => (key === "sendEvent" ? may("send_event") : may("manage"))).map(([key, each]) => html`<${Button} quiet icon=${each.icon} label=${each.label} pressed=${key === action} onClick=${() => setAction(key)} />`)}
      <${IconButton} icon="close" label="Clear the selection" onClick=${onClear} /></span></div>
    ${chosen ? html`<div class="row wrap dry"><span class="chip"><b>Dry run</b></span>
      ${action === "sendEvent" ? html`<input class="input mono part" aria-label="Event type" placeholder="event type" value=${values.type} onChange=${input("type")} /><input class="input mono part" aria-label="Payload as JSON" placeholder="payload, JSON" value=${values.payload} onInput=${input("payload")} />` : null}
      <span>${count === null ? "Counting…" : html`<b>${plural(count, "run")}</b> ${chosen.effect}.${whole && !filter.status ? " Those whose status does not allow it are left out." : ""}`} ${leftOut.length ? html`<span class="ink3">${plural(leftOut.length, "is", "are").replace(/^(\S+) (\S+)$/, "$1 $2")} left out: ${text(leftOut.slice(0, 2).map((pid) => `${pid} is ${statuses.get(pid)}`).join(", "), 160)}${leftOut.length > 2 ? " …" : ""}.</span>` : null}</span>
      <span class="right row wrap"><input class="input part" aria-label="Reason" placeholder="Reason" value=${values.reason} onInput=${input("reason")} />
      ${wantsNumber ? html`<input class="input part short" inputmode="numeric" aria-label=${`Type ${count} to confirm`} placeholder=${`Type ${count}`} value=${values.typed} onInput=${input("typed")} />` : null}
      <${Button} primary label=${`${chosen.label} ${count === null ? "" : plural(count, "run")}`} hint="Ctrl ↵" disabled=${!ready || busy} onClick=${submit} /></span></div>` : null}
    ${problem || dry.error ? html`<${Problem} error=${problem ?? dry.error} onRetry=${problem ? undefined : dry.refresh} />` : null}</div>`;
}
