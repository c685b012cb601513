"use strict";
// The nodes of a fleet: rows with a cell for each gate, in the order of a column, and the map above
// them, which names what is under the pointer and leads to it.
globalThis.rowsOfNodes = ({ element, badge, inBatches, again }) => {
  const data = JSON.parse(document.getElementById("NODES").textContent);
  const verdicts = ["FAIL", "ERROR", "INCONCLUSIVE", "UNVERIFIED", "PASS", "SKIP"];
  const gravity = (verdict) => (verdict ? verdicts.indexOf(verdict) : 1.5);
  const entries = data.rows.map(
    ([name, target, state, verdict, gates, unlike, action, gate, reason], place) => {
      const entry = { place, name, target: data.texts[target], state: data.texts[state] };
      entry.verdict = data.verdicts[verdict] ?? "no result";
      entry.judged = data.verdicts[verdict];
      entry.gates = [...gates].map((digit) => data.verdicts[digit]);
      entry.unlike = data.texts[unlike];
      entry.peers = entry.unlike ? "unlike its peers" : "like its peers";
      entry.action = data.texts[action];
      entry.gate = data.texts[gate];
      entry.reason = data.texts[reason];
      entry.text = [name, entry.reason, entry.unlike, entry.state].join("\n").toLowerCase();
      return entry;
    });

  const glyphs = { PASS: "✓", FAIL: "✕", ERROR: "!", UNVERIFIED: "…", INCONCLUSIVE: "?", SKIP: "–" };
  const cellOf = (verdict, what) => {
    const cell = element("td", glyphs[verdict], `cell ${(verdict ?? "none").toLowerCase()}`);
    cell.title = `${what}: ${verdict ?? "no result"}`;
    if (verdict) cell.setAttribute("aria-label", verdict);
    return cell;
  };
  const rowOf = (entry) => {
    const row = element("tr");
    row.tabIndex = -1;
    const head = element("th", entry.name);
    head.scope = "row";
    const overall = element("td");
    overall.append(entry.judged ? badge(entry.judged) : element("span", entry.state, "badge none"));
    const cells = data.gates.map((gate, at) => cellOf(entry.gates[at], gate));
    const reason = element("td", entry.reason);
    if (entry.unlike) reason.append(element("span", entry.unlike, "soft"));
    row.append(head, overall, ...cells, element("td", entry.action), reason);
    return row;
  };

  // the gravest first; a header's button sorts by its column
  const worst = (one, two) => gravity(one.judged) - gravity(two.judged)
    || (two.unlike ? 1 : 0) - (one.unlike ? 1 : 0) || one.place - two.place;
  const orders = { verdict: worst, node: (one, two) => one.place - two.place };
  data.gates.forEach((_, at) => {
    orders[at] = (one, two) => gravity(one.gates[at]) - gravity(two.gates[at]) || worst(one, two);
  });
  let order = "verdict";
  const buttons = [...document.querySelectorAll("#nodes thead button")];
  const mark = () => {
    for (const button of buttons) {
      const sort = button.value === order ? "ascending" : "none";
      button.closest("th").setAttribute("aria-sort", sort);
    }
  };
  for (const button of buttons) {
    button.addEventListener("click", () => {
      order = button.value;
      mark();
      again();
    });
  }
  mark();

  const said = document.querySelector("#map [role=status]");
  for (const map of document.querySelectorAll("#map svg[data-columns]")) {
    const columns = Number(map.dataset.columns);
    const under = (event) => {
      const box = map.getBoundingClientRect();
      const [, , width, height] = map.getAttribute("viewBox").split(" ").map(Number);
      const x = Math.floor(((event.clientX - box.left) / box.width) * width);
      const y = Math.floor(((event.clientY - box.top) / box.height) * height);
      return x < columns ? entries[y * columns + x] : undefined;
    };
    map.addEventListener("pointermove", (event) => {
      const entry = under(event);
      if (!entry) return;
      const gate = map.dataset.gate;
      const found = gate === undefined ? entry.verdict : entry.gates[gate] ?? "no result";
      said.textContent = `${entry.name}: ${found}${entry.reason ? `, ${entry.reason}` : ""}`;
    });
    map.addEventListener("click", (event) => {
      const entry = under(event);
      if (!entry) return;
      const search = document.querySelector(".filter input");
      search.value = entry.name;
      search.dispatchEvent(new Event("input"));
      document.getElementById("nodes").scrollIntoView();
    });
  }

  const fill = inBatches("#nodes", rowOf);
  return { entries, show: (matches) => fill([...matches].sort(orders[order])) };
};
