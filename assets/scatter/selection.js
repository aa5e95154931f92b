// The selection: changed by gestures while they last, told to Python once when they end.

const LIST_UP_TO = 64; // longer selections travel as a bit set

/** Combine what a gesture hit with what was selected before it: replace, add or remove. */
function applyHits(scatter, hits, before, operation) {
  const { kept, count } = scatter;
  const { selected } = kept;
  let total = 0;
  for (let i = 0; i < count; i++) {
    if (operation === "add") selected[i] = before[i] | hits[i];
    else if (operation === "remove") selected[i] = before[i] & ~hits[i];
    else selected[i] = hits[i];
    total += selected[i];
  }
  kept.selectedCount = total;
  showSelection(scatter);
}

function setSelection(scatter, mask) {
  scatter.kept.selected.set(mask);
  scatter.kept.selectedCount = mask.reduce((total, value) => total + value, 0);
  showSelection(scatter);
}

/** Say how much is selected, beside the tools and in the legend. */
function showSelection(scatter) {
  const { frame, kept, root } = scatter;
  root.dataset.selected = String(kept.selectedCount);
  const [status, title] = describeSelection(scatter);
  frame.status.textContent = status;
  frame.status.title = title;
  frame.clear.disabled = kept.selectedCount === 0;
  refreshLegend(scatter);
}

/** Of the points that are shown; a selection keeps those that a filter hides, as the hint says. */
function describeSelection({ kept, noun, shownCount, count, visible }) {
  const number = (value) => value.toLocaleString("en");
  const chosen = visible.reduce((total, shown, i) => total + (shown & kept.selected[i]), 0);
  const aside = kept.selectedCount - chosen;
  const hidden = shownCount < count ? `${number(count - shownCount)} hidden by filters${aside ? `, ${number(aside)} of them selected` : ""}` : "";
  const shown = `${number(shownCount)} ${shownCount === 1 ? noun[0] : noun[1]}`;
  return [kept.selectedCount ? `${number(chosen)} of ${shown} selected` : shown, hidden];
}

/** End of a gesture: one message to Python, one sentence to the screen reader. */
function commitSelection(scatter) {
  const { kept, root } = scatter;
  kept.revision += 1;
  root.dataset.revision = String(kept.revision);
  root.dataset.commits = String(Number(root.dataset.commits ?? 0) + 1);
  scatter.announce(describeSelection(scatter)[0] + (kept.selectedCount ? "" : ", none selected"));
  const message = { revision: kept.revision };
  if (kept.selectedCount > LIST_UP_TO) message.bits = packBits(kept.selected);
  else message.ids = Array.from(kept.selected.keys()).filter((i) => kept.selected[i]);
  scatter.setStateValue("selection", message);
}

function clearSelection(scatter) {
  if (!scatter.kept.selectedCount) return;
  setSelection(scatter, new Uint8Array(scatter.count));
  scatter.request("top");
  commitSelection(scatter);
}

function selectOne(scatter, index, operation) {
  const hits = new Uint8Array(scatter.count);
  hits[index] = 1;
  applyHits(scatter, hits, scatter.kept.selected.slice(), operation);
  scatter.request("top");
  commitSelection(scatter);
}

const operationOf = (event) => (event.altKey ? "remove" : event.shiftKey ? "add" : "replace");
