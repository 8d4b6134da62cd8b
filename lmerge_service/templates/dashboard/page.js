// Brings panels up to date in place, so that focus, selection and scrolling stay; filters the log.
window.lm = (() => {
  function patch(node, fresh) {
    for (const { name, value } of [...fresh.attributes])
      if (node.getAttribute(name) !== value) node.setAttribute(name, value);
    for (const { name } of [...node.attributes])
      if (!fresh.hasAttribute(name) && name !== "open") node.removeAttribute(name);
    const old = [...node.childNodes], now = [...fresh.childNodes];
    now.forEach((next, at) => {
      const here = old[at];
      if (!here) node.appendChild(next);
      else if (here.nodeType !== next.nodeType || here.nodeName !== next.nodeName)
        node.replaceChild(next, here);
      else if (here.nodeType !== Node.ELEMENT_NODE) {
        if (here.data !== next.data) here.data = next.data;
      } else patch(here, next);
    });
    old.slice(now.length).forEach((gone) => gone.remove());
  }
  function show(panels) {
    for (const [name, html] of Object.entries(panels)) {
      const node = document.querySelector(`[data-panel="${name}"]`);
      if (!node) continue;
      const fresh = new DOMParser().parseFromString(html, "text/html").body;
      const holder = node.cloneNode(false);
      holder.append(...fresh.childNodes);
      patch(node, holder);
    }
    filter();
  }
  let kind = "", words = "";
  function filter(newKind, newWords) {
    if (newKind !== undefined) { kind = newKind; words = newWords.toLowerCase(); }
    for (const row of document.querySelectorAll('[data-panel="log"] tr[data-kind]'))
      row.classList.toggle("hidden", (kind !== "" && row.dataset.kind !== kind) ||
        !row.textContent.toLowerCase().includes(words));
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-act]");
    if (button) emitEvent("lm-act", { ...button.dataset });
  });
  const dark = matchMedia("(prefers-color-scheme: dark)");
  window.addEventListener("load", () =>
    setTimeout(() => emitEvent("lm-dark", dark.matches), 0));
  return { show, filter };
})();
