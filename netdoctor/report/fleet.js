"use strict";
// Everything here is built with textContent: strings of other machines never become markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const fleet = document.getElementById("report"), page = document.getElementById("node");
  const words = {p: "pass", f: "fail", s: "skip", u: "unknown", e: "error"};
  const add = (parent, tag, text, css) => {
    const made = parent.appendChild(document.createElement(tag));
    if (text !== undefined && text !== null) made.textContent = text;
    if (css) made.className = css;
    return made;
  };
  const list = (title, lines) => {
    if (!lines || !lines.length) return;
    add(page, "h2", title);
    const ul = add(page, "ul");
    for (const line of lines) add(ul, "li", line);
  };
  const table = (title, heads, rows) => {
    if (!rows.length) return;
    add(page, "h2", title);
    const made = add(page, "table"), head = add(add(made, "thead"), "tr"), body = add(made, "tbody");
    for (const one of heads) add(head, "th", one);
    for (const row of rows) {
      const tr = add(body, "tr");
      for (const cell of row) Array.isArray(cell) ? add(add(tr, "td"), "span", cell[0], "tag " + cell[0]) : add(tr, "td", cell);
    }
  };
  const show = (node) => {
    page.replaceChildren();
    const back = add(add(page, "p", null, "noprint"), "a", "← all nodes");
    back.href = "#";
    add(page, "h1", node.name);
    add(add(page, "p"), "span", node.state, "tag " + node.state);
    if (node.group !== null) add(page, "p", data.groups[node.group], "soft");
    list("Why", node.reasons);
    list("Worth knowing", node.notes);
    table("Findings", ["check", "subject", "status", "severity", "what"],
      (node.items || []).map((i) => [i[0], i[1], [i[2]], i[3] ? [i[3]] : "", i[5]]));
    if (node.omitted) add(page, "p", node.omitted + " more findings are in the node's own report", "soft");
    if (node.checks !== undefined) {
      const ids = data.orders[node.order];
      table("Checks", ["check", "status"], ids.map((id, n) => [id, [words[node.checks[n]]]]));
    }
    table("Figures", ["figure", "this node", "median of its kind"], (node.figures || []));
    if (node.traits !== undefined) {
      add(page, "h2", "What it has");
      const made = add(page, "dl"), differs = new Set(node.differs || []);
      for (const [name, value] of data.traits[node.traits]) {
        add(made, "dt", name);
        add(made, "dd", value + (differs.has(name) ? "  ← differs from its kind" : ""), differs.has(name) ? "differs" : "");
      }
    }
    if (node.files) list("Files", node.files);
  };
  const go = () => {
    const match = /^#n(\d+)$/.exec(location.hash);
    const node = match && data.nodes[Number(match[1])];
    fleet.classList.toggle("hidden", Boolean(node));
    page.classList.toggle("hidden", !node);
    if (node) { show(node); scrollTo(0, 0); }
  };
  addEventListener("hashchange", go);
  const filter = document.getElementById("filter"), state = document.getElementById("state");
  const apply = () => {
    const text = filter.value.toLowerCase(), wanted = state.value;
    let left = 0;
    for (const row of document.querySelectorAll("tr[data-s]")) {
      const keep = (!wanted || row.dataset.s === wanted) && (!text || row.firstChild.textContent.toLowerCase().includes(text));
      row.classList.toggle("hidden", !keep);
      left += keep;
    }
    if (text || wanted) for (const one of document.querySelectorAll("details.good")) one.open = true;
    document.getElementById("left").textContent = text || wanted ? left + " nodes" : "";
  };
  filter.addEventListener("input", apply);
  state.addEventListener("change", apply);
  document.documentElement.dataset.ready = "yes";
  go();
})();
