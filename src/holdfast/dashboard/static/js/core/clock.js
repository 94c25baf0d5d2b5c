/** The present time for all components of the page, from one timer. */
import { serverNow } from "./api.js";
import { createStore, useStore } from "./store.js";

const second = createStore(serverNow());
setInterval(() => {
  if (!document.hidden) second.set(serverNow());
}, 1000);

/** The server's time; the component renders again every second. */
export function useNow() {
  return useStore(second);
}
