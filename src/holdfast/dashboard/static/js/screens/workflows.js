/** The definitions: their params as a form, their events, their shape, their runs by version. */
import { may } from "../core/api.js";
import { useNow } from "../core/clock.js";
import { number } from "../core/format.js";
import { useGet } from "../core/resource.js";
import { href, route } from "../core/router.js";
import { useStore } from "../core/store.js";
import { html, onText, useState } from "../core/view.js";
import { Button, Empty, heads, Place } from "../parts/basics.js";
import { GraphView } from "../parts/graph-view.js";
import { Icon } from "../parts/icons.js";
import { Json } from "../parts/json.js";
import { openStart } from "../parts/start.js";
import { Status } from "../parts/status.js";
import { text } from "../parts/text.js";
import { openAction } from "../parts/actions.js";
import { fieldOf } from "../core/schema.js";

const ICONS = /** @type {Record<string, string>} */ ({ workflow: "code", chain: "chain", graph: "graph" });

export function Screen() {
  const { path } = useStore(route);
  const definitions = useGet("_definitions");
  const stats = useGet("_stats");
  const [typed, setTyped] = useState("");
  return html`<h1 class="sr">Workflows</h1><${Place} resource=${definitions}>${(/** @type {any} */ data) => {
    const shown = data.workflows.filter((/** @type {any} */ each) => each.name.toLowerCase().includes(typed.toLowerCase()));
    const chosen = data.workflows.find((/** @type {any} */ each) => each.name === path[1]) ?? shown[0];
    if (!data.workflows.length) return html`<${Empty} sentence="This app defines no workflows." command="@app.workflow" />`;
    return html`<div class=${`two ${path[1] ? "open" : ""}`}><section class="card list"><header><input class="input" type="search" aria-label="Find a workflow" placeholder="Find a workflow" value=${typed} onInput=${onText(setTyped)} /></header>
      ${shown.map((/** @type {any} */ each) => html`<a href=${href(["workflows", each.name])} aria-current=${each === chosen ? "page" : undefined}><${Icon} name=${ICONS[each.kind] ?? "code"} size=${14} class="ink3" /><span class="mono cut grow">${text(each.name, 64)}</span><span class="ink3">${stats.data?.runs?.[each.name] ? number(Object.values(stats.data.runs[each.name]).reduce((sum, count) => Number(sum) + Number(count), 0)) : ""}</span></a>`)}</section>
      ${chosen ? html`<${Definition} key=${chosen.name} definition=${chosen} runs=${stats.data?.runs?.[chosen.name]} />` : html`<${Empty} sentence="No workflow has this name." />`}</div>`;
  }}<//>`;
}

/** @param {{definition: any, runs: Record<string, number> | undefined}} props */
function Definition({ definition, runs }) {
  const now = useNow();
  const events = Object.entries(definition.events ?? {});
  const versions = useGet("_versions", { workflow: definition.name });
  return html`<section class="card"><header><a class="narrow-only icon-button" aria-label="All workflows" href=${href(["workflows"])}><${Icon} name="left" /></a><${Icon} name=${ICONS[definition.kind] ?? "code"} /><h2 class="mono">${text(definition.name, 64)}</h2><span class="ink3">${definition.kind}${definition.version ? `, version ${definition.version}` : ""}${definition.pinned ? ", pinned" : ""}</span><span class="right row"><a class="button" href=${href(["runs"], { q: `workflow:${definition.name}` })}>Runs</a>${may("create") ? html`<${Button} primary icon="play" label="Start a run…" hint="N" onClick=${() => openStart(definition.name)} />` : null}</span></header>
    ${definition.doc ? html`<div class="section"><p class="ink2 doc">${text(definition.doc, 2000)}</p></div>` : null}
    ${runs ? html`<div class="section"><h3>Runs</h3><div class="row wrap">${Object.entries(runs).map(([status, count]) => html`<a class="chip" href=${href(["runs"], { q: `workflow:${definition.name} status:${status}` })}><${Status} state=${status} /> <b>${number(count)}</b></a>`)}</div></div>` : null}
    ${versions.data?.versions.some((/** @type {any} */ each) => each.openRuns) ? html`<div class="section"><h3>Open runs by version</h3><div class="row wrap">${versions.data.versions.filter((/** @type {any} */ each) => each.openRuns).map((/** @type {any} */ each) => html`<a class="chip" href=${href(["runs"], { q: `workflow:${definition.name}${each.version === null ? "" : ` version:${each.version}`}` })}><code>${text(each.version ?? "without a version", 60)}</code> <b>${number(each.openRuns)}</b>${each.alive ? null : html` <span class="state s-errored">no worker</span>`}</a>`)}</div></div>` : null}
    ${definition.shape?.nodes ? html`<div class="section"><h3>Shape</h3><div class="graph" tabindex="0" role="region" aria-label="shape of the graph"><${GraphView} nodes=${definition.shape.nodes} now=${now} live=${false} /></div></div>` : null}
    ${definition.shape?.steps ? html`<div class="section"><h3>Shape</h3><div class="row wrap">${definition.shape.steps.map((/** @type {any} */ step, /** @type {number} */ index) => html`${index ? html`<${Icon} name="right" size=${12} />` : null}<span class="chip mono"><b>${text(step.type, 60)}</b> up to ${step.maxAttempts ?? "∞"}</span>`)}</div></div>` : null}
    <div class="section"><h3>Params</h3>${definition.params === null ? html`<p class="ink3">none</p>` : html`<${Fields} schema=${definition.params} />`}</div>
    ${events.length ? html`<div class="section"><h3>Events</h3>${events.map(([type, schema]) => html`<div class="row between"><h4 class="mono medium">${text(type, 100)}</h4>${may("send_event") ? html`<${Button} icon="send" label=${`Send ${text(type, 40)}…`} onClick=${() => openAction("event", { workflow: definition.name, id: "", status: "waiting" }, { initial: { type } })} />` : null}</div><${Fields} schema=${schema} />`)}</div>` : null}</section>`;
}

/** The fields of a JSON schema as a table, and the schema itself. @param {{schema: any}} props */
function Fields({ schema }) {
  const field = fieldOf(schema ?? {});
  const fields = field.fields ?? [{ ...field, key: "value" }];
  return html`<table class="table plain">${heads("field", "type", "default", "about|wide-only")}<tbody>${fields.map((each) => html`<tr><td class="mono">${text(each.key, 60)}</td><td class="ink2">${text([each.hint, (each.choices ?? []).join(", "), (each.fields ?? []).map((inner) => inner.key).join(", ")].filter(Boolean).join(" "), 160)}</td><td class="mono">${each.initial === undefined ? "–" : text(JSON.stringify(each.initial), 80)}</td><td class="ink2 wide-only">${text(each.description ?? "", 200)}</td></tr>`)}</tbody></table>
    <details><summary class="ink3 small">JSON schema</summary><${Json} value=${schema} /></details>`;
}
