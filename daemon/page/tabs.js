// The sections of the page, one of them shown, as the address says.

import { attribute, byId, show } from "./dom.js";

const NAMES = ["overview", "activity", "playground", "downloads", "settings"];

/** Show sections by the fragment of the address, and call `onOpen` with the name of each that is opened. */
export function followAddress(onOpen) {
  const open = () => {
    const wanted = location.hash.slice(1);
    const name = NAMES.includes(wanted) ? wanted : NAMES[0];
    for (const each of NAMES) {
      show(byId(`${each}-view`), each === name);
      attribute(document.querySelector(`nav a[href="#${each}"]`), "aria-current", each === name ? "page" : null);
    }
    window.scrollTo(0, 0);
    onOpen(name);
  };
  window.addEventListener("hashchange", open);
  // the address says which section is open: a step within it is none
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("main").focus();
  });
  open();
}
