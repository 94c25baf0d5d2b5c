/** The mailbox of a run: each event, the step that consumed it, and its reply. */
import { plural } from "../core/format.js";
import { useGet } from "../core/resource.js";
import { runHref, splitPid } from "../core/router.js";
import { html, useState } from "../core/view.js";
import { openAction, possible } from "../parts/actions.js";
import { Button, Empty, heads, Moment, Place, Toggle } from "../parts/basics.js";
import { brief, Json } from "../parts/json.js";
import { Status } from "../parts/status.js";
import { text } from "../parts/text.js";

/** @param {any} props */
export function Tab({ path, live, runNumber, act, target }) {
  const [engine, setEngine] = useState(false);
  const [cursor, setCursor] = useState(/** @type {string | undefined} */ (undefined));
  const mailbox = useGet(path("mailbox"), { pageSize: 50, cursor, runNumber, order: "desc" }, `${live?.events} ${live?.version}`);
  return html`<div class="tab-body" tabindex="0" role="region" aria-label="mailbox"><${Place} resource=${mailbox}>${(/** @type {any} */ data) => {
    const events = data.events.filter((/** @type {any} */ event) => engine || !event.engine);
    return html`<div class="row wrap"><span class="ink2">${data.awaited?.length ? html`The run waits for ${data.awaited.map((/** @type {string} */ type, /** @type {number} */ index) => html`${index ? ", " : ""}<code>${text(type, 100)}</code>`)}.` : "The run waits for no event."}</span>
        <span class="right row"><label class="row"><${Toggle} label="Show events of the engine" checked=${engine} onChange=${() => setEngine(!engine)} />events of the engine <span class="ink3">${data.events.length - events.length || ""}</span></label>${possible("event", target) ? html`<${Button} icon="send" label="Send event…" hint="E" onClick=${() => act("event")} />` : null}</span></div>
      ${events.length ? html`<table class="table cards">${heads("at", "type", "state", "consumed by", "from", "payload")}<tbody>${events.map((/** @type {any} */ event) => html`<tr key=${event.id}><td><${Moment} at=${event.createdAt} /></td><td class="mono">${text(event.type, 100)}${event.ask ? html` <span class="ink3">${event.reply ? "ask, replied" : "ask"}</span>` : null}${event.ask && !event.reply && possible("reply", target) && runNumber === target.runNumber ? html` <${Button} label="Reply…" onClick=${() => openAction("reply", target, { done: mailbox.refresh, initial: { eventId: event.id, type: event.type } })} />` : null}</td>
        <td>${event.deliveredAt ? html`<${Status} state="complete" word="consumed" />` : html`<${Status} state="paused" word="undelivered" />`}</td><td class="mono">${event.consumedByStepKey ? text(event.consumedByStepKey, 100) : "–"}</td><td class="mono">${event.sender ? html`<a class="link" href=${runHref(splitPid(event.sender).workflow, splitPid(event.sender).id)}>${text(event.sender, 100)}</a>` : "outside"}</td>
        <td><details><summary class="mono cut">${brief(event.payload)}</summary><${Json} value=${event.payload} />${event.reply ? html`<p class=${event.reply.ok ? "ink3" : "state s-errored"}>${event.reply.ok ? "reply" : "rejected"}</p><${Json} value=${event.reply.payload} />` : null}</details></td></tr>`)}</tbody></table>` : html`<${Empty} sentence="The mailbox is empty." command="holdfast instances send-event -w WORKFLOW -i ID -t TYPE" />`}
      ${data.nextCursor ? html`<${Button} label="Older" onClick=${() => setCursor(data.nextCursor)} />` : null}${cursor ? html`<${Button} quiet label="Newest" onClick=${() => setCursor(undefined)} />` : null}<p class="ink3 small">${plural(events.length, "event")} on this page, newest first</p>`;
  }}<//></div>`;
}
