/** The list of schedules: next ticks, outcomes of the last ticks, and actions. */
import { may, post, remove } from "../core/api.js";
import { useNow } from "../core/clock.js";
import { clockMinutes, moment, plural, ticking, toMs } from "../core/format.js";
import { useGet, usePolling } from "../core/resource.js";
import { href, runHref } from "../core/router.js";
import { html, useState } from "../core/view.js";
import { Button, Empty, heads, Place, Toggle } from "./basics.js";
import { openConfirm } from "./confirm.js";
import { text } from "./text.js";

const HORIZON = 20 * 36e5;
const STRIP = 360;

/** @param {() => void} done */
function create(done) {
  openConfirm({
    title: "New schedule", label: "Create", effect: "The schedule starts a run at each of its ticks.", done,
    fields: [{ key: "name", label: "Name" }, { key: "workflow", label: "Workflow" }, { key: "cron", label: "Cron", hint: "five fields, or leave it empty" }, { key: "every", label: "Every", hint: "such as 15 min, instead of cron" }, { key: "timezone", label: "Time zone", initial: "UTC" }],
    run: (note, values) => post("_schedules", Object.fromEntries(Object.entries({ ...values, note }).filter(([, value]) => value !== ""))),
  });
}

export function Schedules() {
  const schedules = useGet("_schedules", { pageSize: 100, runs: 15 });
  const [open, setOpen] = useState(/** @type {string | null} */ (null));
  usePolling(schedules.refresh, 10_000);
  const now = useNow();
  if (schedules.error?.code === "NOT_FOUND") return null;
  return html`<section class="card"><header><h2>Schedules</h2><span class="ink3">${schedules.data ? plural(schedules.data.schedules.length, "schedule") : ""}</span>${may("operate") ? html`<span class="right"><${Button} icon="plus" label="New schedule…" onClick=${() => create(schedules.refresh)} /></span>` : null}</header><${Place} resource=${schedules}>${(/** @type {any} */ data) => (data.schedules.length
    ? html`<table class="table cards">${heads(".on", "schedule", "when", html`<th scope="col" class="wide-only"><${Hours} now=${now} /></th>`, "next|num", "last runs|wide-only", "overlap|wide-only")}<tbody>${data.schedules.map((/** @type {any} */ schedule) => html`<${Row} key=${schedule.name} schedule=${schedule} now=${now} open=${open === schedule.name} onOpen=${() => setOpen(open === schedule.name ? null : schedule.name)} refresh=${schedules.refresh} />`)}</tbody></table>`
    : html`<${Empty} sentence="This app has no schedules." command=${'app.schedule("nightly", report, cron="0 3 * * *")'} />`)}<//></section>`;
}

/** @param {{now: number}} props */
function Hours({ now }) {
  const first = Math.ceil(now / 144e5) * 144e5;
  return html`<svg width=${STRIP} height="16" class="chart" aria-hidden="true"><text x="0" y="12">now</text>${[0, 1, 2, 3, 4].map((index) => html`<text x=${((first + index * 144e5 - now) / HORIZON) * STRIP} y="12" text-anchor="middle">${first + index * 144e5 - now < 9e6 ? "" : clockMinutes(first + index * 144e5)}</text>`)}</svg>`;
}

/** @param {{times: string[], now: number}} props the next ticks within the horizon */
function TickStrip({ times, now }) {
  const places = times.map((time) => ((toMs(time) - now) / HORIZON) * STRIP).filter((x) => x >= 0 && x <= STRIP);
  if (!places.length) return html`<span class="right ink3">later</span>`;
  return html`<svg class="ticks" width=${STRIP} height="14" role="img" aria-label=${`${places.length} firings in the next 20 hours`}>${places.length > 20 ? places.map((x) => html`<line x1=${x} x2=${x} y1="2" y2="12" />`) : places.map((x) => html`<circle cx=${x} cy="7" r="3" />`)}</svg>`;
}

const OUTCOMES = /** @type {Record<string, string>} */ ({ queued: "waiting", skipped: "cancelled", missed: "paused", gone: "terminated" });

/** The last ticks, oldest first, coloured by their outcome. @param {{runs: any[]}} props */
function LastRuns({ runs }) {
  const shown = [...runs].reverse();
  return html`<span class="row outcomes">${shown.map((run) => html`<a href=${runHref(run.workflowName, run.id)} title=${`${run.outcome} ${run.scheduledFor}`} aria-label=${`${run.outcome}, ${run.scheduledFor}`}><svg class=${`s-${OUTCOMES[run.outcome] ?? run.outcome}`} width="7" height="14"><rect y="2" width="6" height="12" rx="1" /></svg></a>`)}${shown.length ? null : html`<span class="ink3">–</span>`}</span>`;
}

/** @param {{schedule: any, now: number, open: boolean, onOpen: () => void, refresh: () => void}} props */
function Row({ schedule, now, open, onOpen, refresh }) {
  const path = `_schedules/${encodeURIComponent(schedule.name)}`;
  const preview = useGet(`${path}/preview`, { count: 100 }, `${schedule.paused} ${Math.floor(now / 3e5)}`);
  const times = preview.data?.ticks ?? schedule.nextTicks ?? [];
  const next = schedule.nextTicks?.[0] ?? times[0];
  const word = schedule.paused ? "Resume" : "Pause";
  const toggle = () => openConfirm({ title: `${word} ${schedule.name}`, label: word, effect: schedule.paused ? "Ticks start runs again, from the next tick on." : "No tick starts a run until the schedule is resumed. Runs that were started continue.", done: refresh, run: (reason) => post(`${path}/${word.toLowerCase()}`, { note: reason }) });
  const trigger = () => openConfirm({ title: `Trigger ${schedule.name}`, label: "Trigger", effect: "A run starts now, in addition to the runs of ticks.", done: refresh, run: (reason) => post(`${path}/trigger`, { reason }) });
  const backfill = () => openConfirm({ title: `Backfill ${schedule.name}`, label: "Backfill", effect: "A run starts for each tick in this interval.", done: refresh, fields: [{ key: "start", label: "From", hint: "date and time with zone", initial: new Date(now - 864e5).toISOString() }, { key: "end", label: "Until", initial: new Date(now).toISOString() }], run: (reason, values) => post(`${path}/backfill`, { ...values, reason }) });
  const erase = () => openConfirm({ title: `Delete ${schedule.name}`, label: "Delete", effect: "The schedule is deleted. Its runs stay.", done: refresh, run: (reason) => remove(path, { reason }) });
  return html`<tr><td><${Toggle} label=${`Schedule ${schedule.name}`} checked=${!schedule.paused} disabled=${!may("operate")} onChange=${toggle} /></td><td><button type="button" class="mono medium" aria-expanded=${String(open)} onClick=${onOpen}>${text(schedule.name, 60)}</button> <a class="mono ink3" href=${href(["runs"], { q: `workflow:${schedule.workflowName}` })}>${text(schedule.workflowName, 60)}</a></td><td class="mono">${text(schedule.spec.text, 60)} <span class="ink3">${schedule.spec.text.includes(schedule.spec.timezone) ? "" : text(schedule.spec.timezone, 40)}</span></td>
    <td class="wide-only">${schedule.paused ? html`<span class="state s-paused small">paused${schedule.note ? `: ${text(schedule.note, 60)}` : ""}</span>` : html`<${TickStrip} times=${times} now=${now} />`}</td><td class="num nowrap">${schedule.paused ? html`<span class="state s-paused">paused</span>` : next ? html`<b class="medium">${moment(next, now)}</b> <span class="ink3">in ${ticking(toMs(next) - now)}</span>` : "–"}</td><td class="wide-only"><${LastRuns} runs=${schedule.lastRuns ?? []} /></td><td class="ink2 wide-only">${text(schedule.overlap.replace("_", " "), 20)}</td></tr>
    ${open ? html`<tr class="expanded"><td colspan="7"><div class="row wrap"><span class="ink3">Next</span>${times.slice(0, 4).map((/** @type {string} */ time) => html`<span class="chip">${moment(time, now)}</span>`)}<span class="right row">${may("operate") ? html`<${Button} icon="play" label="Trigger now…" onClick=${trigger} /><${Button} label="Backfill…" onClick=${backfill} />${schedule.declared ? null : html`<${Button} label="Delete…" onClick=${erase} />`}` : null}</span></div></td></tr>` : null}`;
}
