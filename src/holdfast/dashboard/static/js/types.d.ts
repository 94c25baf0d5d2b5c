/** Types of values that several modules share. No page loads this file. */

export interface Attempt {
  n: number;
  start: number;
  end: number | null;
  outcome: "ok" | "failed" | "lost" | "running";
  error?: {name: string, message: string, traceback?: string};
  worker?: string;
  retryAt?: number;
}

export interface Item {
  key: string;
  name: string;
  type: string;
  status: string;
  start: number;
  end: number | null;
  attempts?: Attempt[];
  wakeAt?: number;
  eventType?: string;
  child?: string;
  state?: string;
  parallel?: number;
  maxAttempts?: number | null;
}

export interface Timeline {
  start: number;
  end: number | null;
  workingMs: number;
  total: number;
  version: number;
  items: Item[];
  holders: {worker: string | null, start: number, end: number | null, lost: boolean}[];
  messages: {n: number, type: string, at: number, takenAt: number | null, by?: string, sender?: string}[];
  logs: {at: number, level: string}[];
}

export interface Row {
  /** unique among the rows */
  id: string;
  kind: "run" | "group" | "step";
  level: number;
  name: string;
  hint?: string;
  start: number;
  end: number | null;
  item?: Item;
  /** undefined: it has nothing to unfold */
  open?: boolean;
  /** the run that the row belongs to */
  pid: string;
}

export interface Me {
  actions: string[];
  actor?: string | null;
  role?: string | null;
  authorization?: boolean;
  session?: boolean;
  csrfToken?: string | null;
  debug?: boolean;
  confined?: boolean;
  now?: string;
  app?: string;
  version?: string;
  example?: boolean;
}

export interface Field {
  key: string;
  kind: "text" | "integer" | "number" | "boolean" | "choice" | "object" | "json";
  /** the type in words */
  hint: string;
  required: boolean;
  initial: any;
  choices?: any[];
  /** of an object */
  fields?: Field[];
  description?: string;
}
