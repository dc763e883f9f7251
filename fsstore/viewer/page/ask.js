// Questions to the server.  Everything is below the address of the page itself.

const ARRAYS = {
  u1: Uint8Array, i1: Int8Array, u2: Uint16Array, i2: Int16Array, u4: Uint32Array, i4: Int32Array,
  f4: Float32Array, f8: Float64Array,
};

export class Refused extends Error {}

async function fetched(route, query, signal) {
  const parameters = new URLSearchParams(query);
  const answer = await fetch(`api/${route}?${parameters}`, { headers: { 'Fsstore-View': '1' }, signal });
  if (answer.ok) return answer;
  let text = `The server answered ${answer.status}`;
  try { text = (await answer.json()).error ?? text; } catch { /* it said no more */ }
  throw new Refused(text);
}

export async function ask(route, query = {}, signal) {
  return (await fetched(route, query, signal)).json();
}

export async function askText(route) {
  return (await fetched(route, {})).text();
}

/** Numbers and their description; `values` is a typed array in the order of `shape`. */
export async function askNumbers(route, query, signal) {
  const answer = await fetched(route, query, signal);
  const about = JSON.parse(answer.headers.get('Fsstore-Description'));
  return { ...about, values: new ARRAYS[about.dtype](await answer.arrayBuffer()) };
}

/** Of questions of one kind only the last is worth an answer. */
export class Latest {
  #controller = null;

  async run(work) {
    this.#controller?.abort();
    const mine = this.#controller = new AbortController();
    try {
      const found = await work(mine.signal);
      return mine.signal.aborted ? undefined : found;
    } catch (error) {
      if (mine.signal.aborted) return undefined;
      throw error;
    } finally {
      if (this.#controller === mine) this.#controller = null;
    }
  }

  get busy() { return this.#controller !== null; }
}
