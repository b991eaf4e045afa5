// Puts the page together.

import { guardButtons, mayChange } from "./access.js";
import { Api, ApiError } from "./api.js";
import { DecisionsPanel } from "./decisions.js";
import { attribute, byId, show, text } from "./dom.js";
import { Feed } from "./feed.js";
import { History } from "./history.js";
import { Key, KeyNotGiven } from "./key.js";
import { LogPanel } from "./logs.js";
import { MemoryPanel } from "./memory.js";
import { ModelActions } from "./model_actions.js";
import { ModelsPanel } from "./models.js";
import { Playground } from "./playground.js";
import { PullsPanel } from "./pulls.js";
import { RequestsPanel } from "./requests.js";
import { SettingsPanel } from "./settings.js";
import { Store } from "./store.js";
import { followAddress } from "./tabs.js";
import { Timeline } from "./timeline.js";

const EARLIER = 1000;
const TIMELINE_INTERVAL = 5000;
const PEERS_INTERVAL = 5000;

const key = new Key(sessionStorage);
const api = new Api(key);
const store = new Store();
const actions = new ModelActions(api, store);
const history = new History(store);
const memory = new MemoryPanel(store);
const models = new ModelsPanel(store, api, actions, memory);
const requests = new RequestsPanel(store, api, actions);
const timeline = new Timeline(store, history);
const logs = new LogPanel(api);
const playground = new Playground(api);
const settings = new SettingsPanel(api);
const feed = new Feed(api, store, showConnection);
let opened = "";
let isLearning = false;
new DecisionsPanel(store);
new PullsPanel(store, api);
guardButtons(store);

/** The log is followed while somebody looks at it. */
function followLog() {
  logs.open(opened === "activity" && !document.hidden);
}

/** What the open section shows and the feed does not tell. */
function refreshSection() {
  followLog();
  if (opened === "settings") settings.load();
  if (opened === "playground") playground.load();
}

function showConnection(state, message = "") {
  const words = { live: "live", connecting: "connecting", reconnecting: "reconnecting…", stopped: "no live view" };
  text(byId("connection"), words[state]);
  attribute(byId("connection"), "data-state", state);
  const notice = state === "stopped" || (state === "reconnecting" && message !== "");
  show(byId("notice"), notice);
  text(byId("notice"), notice ? message : "");
}

/** Ask something in passing. Of a daemon that went away, and of a key that is refused, the feed tells. */
async function inPassing(ask) {
  try {
    await ask();
  } catch (error) {
    if (!(error instanceof ApiError || error instanceof TypeError || error instanceof KeyNotGiven)) throw error;
  }
}

/** Learn what this key may do, of some model. Without keys everybody may do everything. */
async function learnAccess(model) {
  if (key.value === null) return store.allow(true);
  const asked = key.value;
  const isAllowed = await mayChange(api, model);
  if (asked === key.value) store.allow(isAllowed);
}

store.on(["models"], () => {
  const [model] = store.models.keys();
  if (store.canChange !== null || model === undefined || isLearning) return;
  isLearning = true;
  inPassing(() => learnAccess(model)).finally(() => (isLearning = false));
});
store.on(["snapshot"], () => {
  inPassing(async () => store.addEarlier((await api.get(`/admin/decisions?limit=${EARLIER}`)).data));
  refreshSection();
  logs.restart();
});
key.onChange = () => {
  text(byId("key-button"), key.value === null ? "API key" : "Forget key");
  store.allow(null);
  feed.restart();
  refreshSection();
};
byId("key-button").addEventListener("click", async () => {
  if (key.value !== null) {
    key.forget();
    return location.reload();
  }
  try {
    await key.change();
  } catch (error) {
    if (!(error instanceof KeyNotGiven)) throw error;
  }
});
text(byId("key-button"), key.value === null ? "API key" : "Forget key");
document.addEventListener("visibilitychange", () => {
  if (document.hidden) feed.pause();
  else feed.resume();
  followLog();
});
setInterval(() => {
  models.rows.tick();
  requests.tick();
}, 1000);
setInterval(timeline.render_soon, TIMELINE_INTERVAL);
setInterval(() => {
  if (opened === "settings" && !document.hidden) settings.loadPeers();
}, PEERS_INTERVAL);
followAddress((name) => {
  opened = name;
  refreshSection();
});
if (!document.hidden) feed.restart();
