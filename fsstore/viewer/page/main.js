// The page: its state, its address, and what happens when either changes.

import { Latest, Refused, ask, askNumbers, askText } from './ask.js';
import { Axis, plain, time, unit } from './axis.js';
import { MAPS, spread } from './colour.js';
import { ChunkMap, arrayFacts, attributeFacts, chips, facts, members, snippets, table } from './panel.js';
import { Picture } from './picture.js';
import { Histogram, drawSeries } from './plot.js';
import { Tree } from './tree.js';

const $ = (id) => document.getElementById(id);
const state = { path: null, rows: 0, columns: 1, at: [], map: 'deep', turn: false, log: false, low: null, high: null, percent: '2', grid: false, square: true, pin: null, along: null };
let array = null, axes = [], playing = 0, seriesIndex = () => null;
const [pictures, series, chunkQuestions, points, arrays] = [1, 2, 3, 4, 5].map(() => new Latest());

const picture = new Picture($('picture'), $('canvas'), { moved, pointed, chosen });
const histogram = new Histogram($('histogram'), (low, high) => { Object.assign(state, { low, high, percent: '' }); restyle(); save(); });
const chunkMap = new ChunkMap($('chunkmap'), $('chunktext'));
const tree = new Tree($('tree'), $('filter'), (path) => open(path));

// --- the address

function save() {
  if (!array) { if (state.path !== null) history.replaceState(null, '', `#${new URLSearchParams({ path: state.path })}`); return; }
  const parts = new URLSearchParams({ path: state.path });
  if (array.rank > 1) {
    parts.set('down', state.rows);
    parts.set('across', state.columns);
    if (picture.asked) parts.set('window', picture.asked.map((each) => +each.toFixed(2)).join());
  }
  if (array.rank) parts.set('at', state.at.join());
  parts.set('map', state.map);
  for (const name of ['turn', 'log', 'grid']) if (state[name]) parts.set(name, '1');
  if (!state.square) parts.set('stretch', '1');
  if (state.low !== null) parts.set('range', `${state.low},${state.high}`);
  if (state.percent !== '2') parts.set('percent', state.percent);
  if (state.pin) parts.set('pin', state.pin.join());
  if (state.along !== null && state.pin) parts.set('series', state.along);
  history.replaceState(null, '', `#${parts}`);
  if ($('copies').open) drawSnippets();
}

function saved() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const numbers = (name) => parts.get(name)?.split(',').map(Number).filter(Number.isFinite);
  return { parts, numbers };
}

// --- arrays

const open = (path, restore = false) => (tree.isGroup(path) ? showGroup(path) : show(path, restore));

/** Begin to show something else: what is asked for is not shown any more. */
function leave() {
  stop();
  openSide(false);
  $('note').hidden = true;
}

/** Show nothing but some words, in place of an array. */
function only(text) {
  array = null;
  for (const id of ['view', 'sheet', 'colours', 'point', 'about', 'chunks', 'attributes', 'copies']) $(id).hidden = true;
  $('chips').replaceChildren();
  $('empty').hidden = false;
  $('empty').firstElementChild.textContent = text;
}

async function show(path, restore = false) {
  leave();
  let found;
  try {
    found = await arrays.run((signal) => ask('array', { path }, signal));
  } catch (error) {
    if (error?.name === 'AbortError') return;
    [$('name').textContent, $('long').textContent] = [path || '/', 'cannot be shown'];
    only(words(error));
    return;
  }
  if (!found) return;
  array = found;
  axes = array.shape.map((size, k) => new Axis(array.axes[k], size, array.names[k], k));
  Object.assign(state, { path, rows: array.rows ?? 0, columns: array.columns ?? 0, at: array.at, low: null, high: null, percent: '2', pin: null, along: null, turn: false, log: false, square: true });
  const isLabel = ['uint32', 'uint64'].includes(array.dtype) && (array.codec ?? []).includes('compressed_segmentation');
  state.map = isLabel ? 'labels' : 'deep';
  let window = null;
  if (restore) window = restored();
  tree.select(path);
  describe();
  const isEmpty = array.shape.includes(0), hasPicture = array.drawable && array.rank > 0 && !isEmpty;
  $('empty').hidden = !isEmpty;
  $('empty').firstElementChild.textContent = isEmpty ? 'This array has no elements.' : '';
  for (const id of ['about', 'attributes', 'copies']) $(id).hidden = false;
  $('view').hidden = !hasPicture;
  $('sheet').hidden = hasPicture || isEmpty;
  $('colours').hidden = !hasPicture || array.rank < 2 || isColour();
  $('picture').hidden = document.querySelector('.tools').hidden = array.rank < 2;
  $('chunks').hidden = array.rank < 2 || !array.chunks.every(Boolean) || isEmpty;
  $('point').hidden = !hasPicture;
  $('series').classList.toggle('only', array.rank === 1);
  if (isEmpty) return save();
  if (!hasPicture) { table($('sheet'), array, state).catch(complain); facts($('pointed'), []); return save(); }
  sliders();
  if (array.rank === 1) {
    state.pin ??= [Math.min(array.shape[0] - 1, state.at[0])];
    state.along = 0;
  } else begin(window);
  drawPoint();
  drawSeriesOf();
  save();
}

function restored() {
  const { parts, numbers } = saved(), inside = (k) => Number.isInteger(k) && k >= 0 && k < array.rank;
  const [rows, columns] = [Number(parts.get('down') ?? state.rows), Number(parts.get('across') ?? state.columns)];
  if (inside(rows) && inside(columns) && rows !== columns) Object.assign(state, { rows, columns });
  const at = numbers('at');
  if (at?.length === array.rank) state.at = at.map((each, k) => Math.max(0, Math.min(array.shape[k] - 1, Math.floor(each))));
  if (MAPS.includes(parts.get('map'))) state.map = parts.get('map');
  for (const name of ['turn', 'log', 'grid']) state[name] = parts.get(name) === '1';
  state.square = parts.get('stretch') !== '1';
  const range = numbers('range');
  if (range?.length === 2) [state.low, state.high] = range;
  if (parts.has('percent')) state.percent = parts.get('percent');
  const pin = numbers('pin');
  if (pin?.length === array.rank) state.pin = pin.map((each, k) => Math.max(0, Math.min(array.shape[k] - 1, Math.floor(each))));
  const along = Number(parts.get('series') ?? NaN);
  if (inside(along)) state.along = along;
  const window = numbers('window');
  return window?.length === 4 && window[0] < window[1] && window[2] < window[3] ? window : null;
}

async function showGroup(path) {
  leave();
  let found;
  try {
    found = await arrays.run((signal) => ask('group', { path }, signal));
  } catch (error) { if (error?.name !== 'AbortError') only(words(error)); return; }
  if (!found) return;
  state.path = path;
  const inside = tree.inside(path), title = found.attributes.title ?? found.attributes.description;
  only(inside.length ? '' : 'There is nothing in this group.');
  $('name').textContent = path || placeName();
  $('long').textContent = typeof title === 'string' ? title : '';
  document.title = `${$('name').textContent} · fsstore`;
  tree.select(path);
  chips($('chips'), null, inside);
  attributeFacts($('attrs'), found.attributes);
  $('attributes').hidden = false;
  $('empty').hidden = inside.length > 0;
  $('sheet').hidden = !inside.length;
  members($('sheet'), inside.map((each) => ({ ...each, isImage: tree.images.has(each.path) })), path, open);
  save();
}

/** What the place is called: the last part of its URL that is no scheme. */
const placeName = () => $('place').textContent.split(/[/|]/).map((each) => each.replace(/^[\w.+-]+:/, '')).filter(Boolean).at(-1) ?? '/';

const isColour = () => array.colours !== null && state.rows === array.rows && state.columns === array.columns;
const drawn = () => [state.rows, state.columns];

/** How high an element is for its width, from coordinates where they are of one kind; 0 where it means nothing. */
function elementShape() {
  if (!state.square) return 0;
  const [y, x] = drawn().map((k) => axes[k]), [a, b] = [y.info, x.info];
  const kind = (info) => (info ? (info.kind === 'number' ? (info.units || '').replace(/_?(north|east|n|e)$/i, '').replace(/s$/, '') : info.kind) : '');
  if (kind(a) !== kind(b)) return 0;
  const slope = (axis) => Math.abs(axis.value(axis.size - 1) - axis.value(0)) / Math.max(1, axis.size - 1);
  const ratio = a && y.values && x.values && y.size > 1 && x.size > 1 ? slope(y) / slope(x) : 1;
  const shape = Number.isFinite(ratio) && ratio > 0.05 && ratio < 20 ? ratio : 1, long = (y.size * shape) / x.size;
  return long > 12 || long < 1 / 12 ? 0 : shape;
}

function begin(window) {
  picture.begin(axes[state.rows], axes[state.columns], elementShape());
  picture.pin = state.pin ? drawn().map((k) => state.pin[k]) : null;
  const wide = (axes[state.columns].size / (axes[state.rows].size * (picture.square || 1)));
  picture.box.style.setProperty('--wide', picture.square ? wide.toFixed(3) : '1.4');
  picture.box.classList.toggle('up', axes[state.rows].up);
  picture.box.classList.toggle('shaped', picture.square > 0);
  if (window) picture.show(window);
  load();
}

function describe() {
  $('name').textContent = array.path || placeName();
  $('long').textContent = [array.long_name, unit(array.units)].filter((each) => typeof each === 'string' && each).join(' · ');
  document.title = `${array.path || $('name').textContent} · fsstore`;
  chips($('chips'), array);
  arrayFacts($('facts'), array);
  attributeFacts($('attrs'), array.attributes);
  for (const [id, chosenOne] of [['rows', state.rows], ['columns', state.columns]]) {
    $(id).replaceChildren(...axes.map((axis, k) => new Option(axis.name, k, false, k === chosenOne)));
  }
}

// --- pictures

let due = 0;
function moved() {
  clearTimeout(due);
  due = setTimeout(() => { load(); save(); }, 90);
  drawChunks();
}

const look = () => ({ map: state.map, turn: state.turn, log: state.log, low: state.low, high: state.high });

async function load(fresh = false) {
  if (!array || array.rank < 2 || !picture.window) return;
  const seen = picture.seen, mine = array;
  if (seen.window[1] <= seen.window[0] || seen.window[3] <= seen.window[2]) return;
  $('busy').hidden = false;
  try {
    const along = isColour() ? [...drawn(), array.colours] : drawn();
    const numbers = await pictures.run((signal) => askNumbers('picture', { path: array.path, along: along.join(), at: state.at.join(), window: seen.window.join(), pixels: seen.pixels.join() }, signal));
    if (!numbers || array !== mine) return;
    const known = spread(numbers.values);
    if (state.low === null && !isColour()) ranged(known);
    if (fresh) picture.replace(numbers, look()); else picture.add(numbers, look());
    if (!isColour()) histogram.set(numbers.values, known, look());
    controls();
    about(numbers, seen, known);
    drawChunks();
    save();
  } catch (error) { complain(error); } finally { if (!pictures.busy) $('busy').hidden = true; }
}

function about(numbers, seen, known) {
  const levels = array.levels.length, coarse = numbers.step.map((each, k) => each / Math.max(1, (seen.window[2 * k + 1] - seen.window[2 * k]) / numbers.pixels[k]));
  $('level').textContent = [levels > 1 ? `level ${numbers.level + 1} of ${levels}` : '', numbers.coarse.some((each) => each > 1) ? `every ${numbers.coarse.join(' × ')}` : 'every element'].filter(Boolean).join(', ');
  const isCoarse = Math.max(...coarse) > 2.5;
  $('note').hidden = !isCoarse && known.some;
  $('note').className = 'soft';
  $('note').textContent = known.some ? (isCoarse ? 'A sample of few chunks: zoom in to see more' : '') : 'Nothing but missing values here';
}

function complain(error) {
  if (error?.name === 'AbortError') return;
  $('note').hidden = false;
  $('note').className = '';
  $('note').textContent = words(error);
  if ($('view').hidden) { $('empty').hidden = false; $('empty').firstElementChild.textContent = $('note').textContent; }
}

const words = (error) => (error instanceof Refused ? error.message : `The page cannot reach its server (${error?.message ?? error})`);

function ranged(known) {
  if (!known.some) { Object.assign(state, { low: 0, high: 1 }); return; }
  const share = state.percent === '' ? 0 : Number(state.percent) / 100;
  [state.low, state.high] = [known.at(share), known.at(1 - share)];
  const ratio = Math.min(-state.low, state.high) / Math.max(-state.low, state.high);
  if (state.low < 0 && state.high > 0 && ratio > 0.5 && state.map === 'deep') {
    state.map = 'balance';
    state.high = Math.max(-state.low, state.high);
    state.low = -state.high;
  }
  if (state.low === state.high) { state.low = known.low; state.high = known.high; }
}

function rerange() {
  if (!picture.latest) return;
  ranged(spread(picture.latest.numbers.values));
  restyle();
  save();
}

function restyle() {
  if (!array || array.rank < 2) return;
  picture.repaint(look());
  if (picture.latest && !isColour()) histogram.set(picture.latest.numbers.values, spread(picture.latest.numbers.values), look());
  controls();
}

const measured = () => (array.is_time || !unit(array.units) ? '' : ` ${unit(array.units)}`);
const shownValue = (value) => (array?.is_time ? time(value) : plain(value));

function controls() {
  $('map').value = state.map;
  $('percent').value = state.percent;
  for (const [id, value] of [['low', state.low], ['high', state.high]]) if (document.activeElement !== $(id)) $(id).value = value === null ? '' : shownValue(Number(Number(value).toPrecision(7)));
  for (const [id, on] of [['turn', state.turn], ['log', state.log], ['gridded', state.grid], ['square', state.square]]) $(id).setAttribute('aria-pressed', String(on));
}

// --- points and series

function pointed(px, py) {
  const tip = $('tip');
  if (px === null || !array) { tip.hidden = true; return; }
  const [y, x] = picture.place(px, py), found = picture.valueAt(y, x);
  if (!found || y < 0 || x < 0 || y >= axes[state.rows].size || x >= axes[state.columns].size) { tip.hidden = true; return; }
  const value = document.createElement('b'), where = document.createElement('span');
  value.textContent = Array.isArray(found.value) ? found.value.join(', ') : shownValue(found.value) + measured();
  where.textContent = drawn().map((k, n) => `${axes[k].name} ${axes[k].label(found.at[n])}`).join('   ');
  tip.replaceChildren(value, where);
  tip.hidden = false;
  const box = $('picture'), left = px + 16 + tip.offsetWidth > box.clientWidth ? px - tip.offsetWidth - 12 : px + 16;
  tip.style.setProperty('left', `${Math.max(4, left)}px`);
  tip.style.setProperty('top', `${Math.max(4, py + 16 + tip.offsetHeight > box.clientHeight ? py - tip.offsetHeight - 10 : py + 16)}px`);
}

function chosen(px, py) {
  const [y, x] = picture.place(px, py), at = [...state.at];
  if (y < 0 || x < 0 || y >= axes[state.rows].size || x >= axes[state.columns].size) return;
  const found = picture.valueAt(y, x);
  [at[state.rows], at[state.columns]] = found && !found.exact ? found.at : [Math.floor(y), Math.floor(x)];
  pinned(at);
}

function pinned(at) {
  state.pin = at;
  picture.pin = drawn().map((k) => at[k]);
  picture.draw();
  state.along ??= array.shape.findIndex((size, k) => !drawn().includes(k) && size > 1 && k !== array.colours);
  if (state.along < 0) state.along = state.columns;
  drawPoint();
  drawSeriesOf();
  save();
}

async function drawPoint() {
  const pin = state.pin;
  if (!pin) { facts($('pointed'), [['', 'Choose a point of the picture.']]); return; }
  const rows = axes.map((axis, k) => [axis.name, axis.info ? `${axis.label(pin[k])}  [${pin[k]}]` : String(pin[k])]);
  try {
    const found = await points.run((signal) => ask('value', { path: array.path, at: pin.join() }, signal));
    if (found && state.pin === pin) facts($('pointed'), [['value', found.value === 'nan' || found.value === 'NaT' ? 'missing' : found.value + measured(), true], ...rows]);
  } catch (error) { facts($('pointed'), [['value', error.message], ...rows]); }
}

async function drawSeriesOf() {
  const box = $('series');
  if (!state.pin || state.along === null) { box.hidden = true; return; }
  box.hidden = false;
  $('along').replaceChildren(...axes.map((axis, k) => {
    const button = document.createElement('button');
    button.textContent = axis.name;
    button.setAttribute('aria-pressed', String(k === state.along));
    button.addEventListener('click', () => { state.along = k; drawSeriesOf(); save(); });
    return button;
  }).filter((_, k) => array.shape[k] > 1));
  const k = state.along, pin = state.pin;
  $('through').textContent = axes.filter((_, n) => n !== k && array.shape[n] > 1).map((axis) => `${axis.name} ${axis.label(pin[axes.indexOf(axis)])}`).join(', ');
  try {
    const found = await series.run((signal) => askNumbers('series', { path: array.path, along: k, at: pin.join(), window: `0,${array.shape[k]}` }, signal));
    if (!found) return;
    lastSeries = found;
    redrawSeries();
  } catch (error) { complain(error); }
}

let lastSeries = null;
function redrawSeries() {
  if (!lastSeries || state.along === null || $('series').hidden) return;
  const here = drawn().includes(state.along) || array.rank === 1 ? state.pin[state.along] : state.at[state.along];
  seriesIndex = drawSeries($('plot'), lastSeries, axes[state.along], here, shownValue);
}

// --- chunks and snippets

async function drawChunks() {
  if (!array || array.rank < 2 || $('chunks').hidden) return;
  const sides = drawn().map((k) => array.chunks[k]), wanted = state.grid || $('chunks').open;
  picture.grid = state.grid ? { chunks: sides, map: picture.grid?.map ?? null } : null;
  picture.draw();
  if (!wanted) return;
  try {
    const { window } = picture.seen, mine = array;
    const found = await chunkQuestions.run((signal) => chunkMap.load(array, drawn(), state.at, window, signal));
    if (!found || mine !== array) return;
    if (picture.grid) { picture.grid.map = found.map; picture.draw(); }
    if ($('chunks').open) chunkMap.draw(found, picture.window, array, drawn(), axes[state.rows].up);
  } catch (error) { complain(error); }
}

function drawSnippets() {
  if (!array) return;
  const along = array.rank > 1 ? drawn() : array.rank ? [0] : [];
  snippets($('snippets'), array, state, array.rank > 1 ? picture.seen : { window: [0, array.shape[0] ?? 0] }, along);
}

// --- the other dimensions

function sliders() {
  const rows = axes.map((axis, k) => [axis, k]).filter(([axis, k]) => array.rank > 1 && !drawn().includes(k) && axis.size > 1 && !(isColour() && k === array.colours));
  $('sliders').replaceChildren(...rows.map(([axis, k]) => {
    const row = document.createElement('div'), what = document.createElement('span'), play = document.createElement('button'), range = document.createElement('input'), out = document.createElement('output');
    row.className = 'slider';
    what.className = 'what';
    what.textContent = axis.name;
    play.className = 'icon small';
    play.textContent = '▸';
    play.setAttribute('aria-label', `Play along ${axis.name}`);
    play.addEventListener('click', () => (playing && playing.k === k ? stop() : start(k)));
    Object.assign(range, { type: 'range', min: 0, max: axis.size - 1, step: 1, value: state.at[k] });
    range.setAttribute('aria-label', axis.name);
    range.dataset.dimension = k;
    const told = () => { out.textContent = axis.info ? `${axis.label(state.at[k])}  [${state.at[k]}]` : `${state.at[k]} of ${axis.size}`; range.setAttribute('aria-valuetext', out.textContent); };
    range.addEventListener('input', () => { state.at[k] = Number(range.value); told(); stepped(); });
    told();
    row.append(what, play, range, out);
    return row;
  }));
}

let stepping = 0;
function stepped() {
  if (state.pin) state.pin = state.pin.map((each, k) => (drawn().includes(k) ? each : state.at[k]));
  clearTimeout(stepping);
  stepping = setTimeout(() => { load(true); drawPoint(); if (drawn().includes(state.along)) drawSeriesOf(); else redrawSeries(); }, 25);
}

function step(k, by) {
  const range = document.querySelector(`#sliders input[data-dimension="${k}"]`);
  if (!range) return;
  range.value = (Number(range.value) + by + axes[k].size) % axes[k].size;
  range.dispatchEvent(new Event('input'));
}

function start(k) {
  stop();
  playing = { k, timer: setInterval(() => { if (!pictures.busy) step(k, 1); }, 140) };
  $('sliders').querySelectorAll('button').forEach((button) => { if (button.getAttribute('aria-label') === `Play along ${axes[k].name}`) button.textContent = '■'; });
}

function stop() {
  if (playing) clearInterval(playing.timer);
  playing = 0;
  $('sliders').querySelectorAll('button').forEach((button) => { button.textContent = '▸'; });
}

// --- controls

function dimensions(rows, columns) {
  if (rows === columns) return;
  Object.assign(state, { rows, columns });
  state.low = state.high = null;
  state.percent = '2';
  describe();
  sliders();
  $('colours').hidden = isColour();
  begin(null);
  drawPoint();
  save();
}

$('rows').addEventListener('change', () => { const k = Number($('rows').value); dimensions(k, k === state.columns ? state.rows : state.columns); });
$('columns').addEventListener('change', () => { const k = Number($('columns').value); dimensions(k === state.rows ? state.columns : state.rows, k); });
$('swap').addEventListener('click', () => dimensions(state.columns, state.rows));
$('fit').addEventListener('click', () => { picture.fit(); moved(); });
$('in').addEventListener('click', () => picture.zoom(0.6));
$('out').addEventListener('click', () => picture.zoom(1 / 0.6));
const flip = (name, then) => { state[name] = !state[name]; controls(); then(); save(); };
$('gridded').addEventListener('click', () => flip('grid', drawChunks));
$('square').addEventListener('click', () => flip('square', () => { picture.square = elementShape(); picture.box.classList.toggle('shaped', picture.square > 0); picture.fit(); moved(); }));
$('turn').addEventListener('click', () => flip('turn', restyle));
$('log').addEventListener('click', () => flip('log', restyle));
$('map').replaceChildren(...MAPS.map((name) => new Option(name)));
$('map').addEventListener('change', () => { state.map = $('map').value; restyle(); save(); });
$('percent').addEventListener('change', () => { state.percent = $('percent').value; if (state.percent !== '') rerange(); });
$('ranged').addEventListener('click', () => { if (state.percent === '') state.percent = '2'; rerange(); });
for (const id of ['low', 'high']) $(id).addEventListener('change', () => {
  const value = Number($(id).value.replace('−', '-'));
  if (Number.isFinite(value) && $(id).value.trim()) Object.assign(state, { [id]: value, percent: '' });
  restyle();
  save();
});
$('chunks').addEventListener('toggle', drawChunks);
$('copies').addEventListener('toggle', drawSnippets);
$('plot').addEventListener('click', (event) => {
  const index = seriesIndex(event.clientX - $('plot').getBoundingClientRect().left);
  if (index === null) return;
  if (array.rank === 1) { state.pin = state.at = [index]; drawPoint(); redrawSeries(); save(); return; }
  if (drawn().includes(state.along)) { const at = [...state.pin]; at[state.along] = index; pinned(at); return; }
  step(state.along, index - state.at[state.along]);
});
new ResizeObserver(redrawSeries).observe($('plot'));

const KEYS = [
  [['←', '→', '↑', '↓'], 'pan the picture, or drag it'], [['+', '−'], 'zoom, or turn the wheel, or pinch'], [['0'], 'show everything'],
  [['[', ']'], 'step along the first slider'], [['Space'], 'play along the first slider'], [['Enter'], 'choose the point in the middle, or click one'],
  [['x'], 'exchange the dimensions'], [['c'], 'next colour map'], [['i'], 'turn the colours round'], [['l'], 'logarithmic colours'], [['r'], 'range of what is seen'],
  [['g'], 'chunk grid, with what is stored'], [['s'], 'square elements, or stretched'], [['t'], 'light, dark, as the system is'], [['/'], 'filter arrays'], [['?'], 'this list'],
];
for (const [names, text] of KEYS) {
  const row = $('keytable').insertRow(), cell = row.insertCell();
  names.forEach((name) => { const key = document.createElement('kbd'); key.textContent = name; cell.append(key, ' '); });
  row.insertCell().textContent = text;
}
$('help').addEventListener('click', () => $('keys').showModal());

const firstSlider = () => Number(document.querySelector('#sliders input')?.dataset.dimension ?? -1);
const ACTIONS = {
  ArrowLeft: () => picture.pan(0, 80), ArrowRight: () => picture.pan(0, -80), ArrowUp: () => picture.pan(80, 0), ArrowDown: () => picture.pan(-80, 0),
  '+': () => picture.zoom(0.6), '=': () => picture.zoom(0.6), '-': () => picture.zoom(1 / 0.6), 0: () => $('fit').click(), '[': () => step(firstSlider(), -1), ']': () => step(firstSlider(), 1),
  ' ': () => { const k = firstSlider(); if (playing) stop(); else if (k >= 0) start(k); },
  Enter: () => { const { x, y, w, h } = picture.plot; chosen(x + w / 2, y + h / 2); },
  x: () => $('swap').click(), c: () => { state.map = MAPS[(MAPS.indexOf(state.map) + 1) % MAPS.length]; restyle(); save(); },
  i: () => $('turn').click(), l: () => $('log').click(), r: () => $('ranged').click(), g: () => $('gridded').click(), s: () => $('square').click(),
};
document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $('keys').open) return;
  if (event.target.closest('input, select, textarea, [role="tree"]')) { if (event.key === 'Escape') event.target.blur(); return; }
  const everywhere = { t: () => $('theme').click(), '/': () => { openSide(true); $('filter').focus(); }, '?': () => $('keys').showModal() };
  const action = everywhere[event.key] ?? (array && array.rank > 1 && !$('view').hidden ? ACTIONS[event.key] : undefined);
  if (!action || ((event.key === ' ' || event.key === 'Enter') && event.target.closest('button, summary, a'))) return;
  event.preventDefault();
  action();
});

// --- themes and the drawer

const preferred = matchMedia('(prefers-color-scheme: dark)');
const remembered = { get: () => { try { return localStorage.getItem('fsstore-theme'); } catch { return null; } }, set: (value) => { try { localStorage.setItem('fsstore-theme', value); } catch { /* a frame without storage */ } } };
let theme = remembered.get() ?? 'system';
function applyTheme() {
  document.documentElement.dataset.theme = theme === 'system' ? (preferred.matches ? 'dark' : 'light') : theme;
  $('theme').title = `Theme: ${theme} (t)`;
  picture.draw();
  histogram.draw();
  drawChunks();
}
preferred.addEventListener('change', applyTheme);
$('theme').addEventListener('click', () => {
  const isDark = preferred.matches, order = isDark ? ['system', 'light', 'dark'] : ['system', 'dark', 'light'];
  theme = order[(order.indexOf(theme) + 1) % 3];
  remembered.set(theme);
  applyTheme();
});
function openSide(open) {
  $('side').classList.toggle('open', open);
  $('menu').setAttribute('aria-expanded', String(open));
  $('shade').hidden = !open || getComputedStyle($('menu')).display === 'none';
}
$('menu').addEventListener('click', () => openSide(!$('side').classList.contains('open')));
$('shade').addEventListener('click', () => openSide(false));
addEventListener('hashchange', () => open(saved().parts.get('path') ?? state.path, true));
applyTheme();

// --- the beginning

async function main() {
  try {
    $('place').textContent = $('place').title = await askText('title');
    const found = await ask('tree');
    document.querySelector('.frame').classList.toggle('alone', !found.group);
    document.body.classList.toggle('many', found.group);
    if (found.group) tree.set(found.members, found.images, found.root_is_image, placeName());
    $('damaged').replaceChildren(...Object.entries(found.damaged).map(([path, why]) => {
      const line = document.createElement('div');
      line.textContent = `${path || '/'} cannot be shown: ${why}`;
      return line;
    }));
    const wanted = saved().parts.get('path');
    const first = found.group ? (found.root_is_image ? '' : found.images[0] ?? firstArray(found.members)) : '';
    if (wanted !== null) await open(wanted, true);
    else if (first !== undefined) await show(first);
    else await showGroup('');
  } catch (error) { complain(error); }
}

/** The array that is most worth a look: the first with the most dimensions, coordinates last. */
function firstArray(members) {
  const drawable = members.filter((each) => each.shape && !each.shape.includes(0));
  const rank = (each) => Math.min(3, each.shape.length), depth = (each) => each.path.split('/').length;
  return drawable.sort((a, b) => rank(b) - rank(a) || depth(a) - depth(b))[0]?.path;
}

await main();
document.documentElement.dataset.ready = 'yes';
