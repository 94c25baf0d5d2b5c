/** The page that asks for a token. The token goes to the server once and is kept nowhere in the browser. */
import { loadMe, me, post, remove } from "../core/api.js";
import { html, onText, useState } from "../core/view.js";
import { Button, Problem } from "../parts/basics.js";
import { Logo } from "../parts/icons.js";

export function SignIn() {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState(/** @type {any} */ (null));
  /** @param {Event} [event] */
  async function signIn(event) {
    event?.preventDefault();
    try {
      await post("_session", { token });
      setToken("");
      await loadMe();
    } catch (error) {
      setProblem(error);
    }
  }
  return html`<main class="sign-in"><form class="card" onSubmit=${signIn}><div class="brand"><${Logo} />Holdfast</div>
    <label class="field"><span>Token <em>of a viewer, an operator or an admin</em></span><input class="input mono" type="password" autocomplete="current-password" autofocus value=${token} onInput=${onText(setToken)} /></label>
    ${problem ? html`<${Problem} error=${problem} />` : null}<${Button} primary label="Sign in" onClick=${() => void signIn()} /></form></main>`;
}

export async function signOut() {
  await remove("_session").catch(() => undefined);
  me.set("signed-out");
}
