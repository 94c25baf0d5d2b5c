/** The list of keys, and the settings of this browser. */
import { preferences, setPreferences } from "../core/prefs.js";
import { useStore } from "../core/store.js";
import { html } from "../core/view.js";
import { Button, Segmented, Toggle } from "./basics.js";
import { closeOverlay, Dialog } from "./overlay.js";

/** @type {[string, string][]} */
const KEYS = [
  ["Ctrl K", "palette"], ["/", "filter"], ["N", "start a run"], ["J K", "move"], ["Enter", "open"], ["X", "select"],
  ["A", "next action"], ["E", "send event"], ["P", "pause or resume"], ["R", "retry"], ["F", "fork"], ["T", "fold idle time"],
  ["+ − 0", "zoom"], ["← →", "pan, or step through facts"], [".", "show new rows"], ["[ ]", "tabs"], ["?", "this list"], ["Esc", "back"],
];

export function Help() {
  const settings = useStore(preferences);
  return html`<${Dialog} label="Keys and settings" class="sheet wide"><header>Keys and settings</header><div class="body">
    <dl class="keys">${KEYS.map(([key, meaning]) => html`<div class="row"><dt>${key.split(" ").map((each) => html`<kbd>${each}</kbd> `)}</dt><dd>${meaning}</dd></div>`)}</dl>
    <div class="row between"><span>Single-key shortcuts</span><${Toggle} label="Single-key shortcuts" checked=${settings.keys} onChange=${() => setPreferences({ keys: !settings.keys })} /></div>
    <div class="row between"><span>Time zone</span><${Segmented} label="Time zone" value=${settings.zone} options=${[["utc", "UTC"], ["local", "local"]]} onChange=${(/** @type {"utc" | "local"} */ zone) => setPreferences({ zone })} /></div>
    <div class="row between"><span>Theme</span><${Segmented} label="Theme" value=${settings.theme} options=${[["system", "system"], ["light", "light"], ["dark", "dark"]]} onChange=${(/** @type {"light" | "dark" | "system"} */ theme) => setPreferences({ theme })} /></div>
  </div><footer><${Button} label="Close" hint="Esc" onClick=${closeOverlay} /></footer><//>`;
}
